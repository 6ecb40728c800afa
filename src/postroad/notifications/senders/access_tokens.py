"""The tokens by which Google knows a project: fetched once, kept until they expire or Google refuses them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Final

_TOKEN: Final = re.compile(r"[!-~]{1,16384}")


class NoToken(Exception):
    """No token could be had; `passing` when asking again may help."""

    def __init__(self, why: str, *, passing: bool) -> None:
        super().__init__(why)
        self.why = why
        self.passing = passing


class AccessTokens:
    """Gives all threads the same token, and one of them fetches it."""

    def __init__(self, fetch: Callable[[], str], expired: Callable[[], bool] = lambda: False) -> None:
        self._fetch = fetch
        self._expired = expired
        self._lock = threading.Lock()
        self._token: str | None = None

    def current(self) -> str:
        """The token to use now."""
        with self._lock:
            if self._token is None or self._expired():
                self._token = _fetched(self._fetch)
            return self._token

    def instead_of(self, refused: str) -> str:
        """A token fetched after the refused one."""
        with self._lock:
            if self._token is None or self._token == refused:
                self._token = _fetched(self._fetch)
            return self._token


def _fetched(fetch: Callable[[], str]) -> str:
    try:
        token: object = fetch()
    except Exception as error:
        # Only its name: what a stranger's exception says may hold a secret.
        passing = isinstance(error, OSError) or bool(getattr(error, "retryable", False))
        raise NoToken(type(error).__name__, passing=passing) from error
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise NoToken("NoUsableToken", passing=False)
    return token
