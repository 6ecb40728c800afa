"""The tokens by which Google knows a project: fetched once, kept until Google refuses them or they expire."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from google.auth import exceptions, transport
from google.oauth2 import service_account

from postroad.errors import ConfigurationError
from postroad.notifications.senders.addresses import trusting

_SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
_TOKEN = re.compile(r"[!-~]{1,16384}")


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


def service_account_tokens(path: str | Path, ca_file: str | Path | None, timeout: float) -> AccessTokens:
    """Tokens of the service account of this file, which says itself where they are fetched."""
    try:
        account = service_account.Credentials.from_service_account_file(str(path), scopes=[_SCOPE])  # type: ignore[no-untyped-call]  # google-auth has no types here
    except (OSError, ValueError, KeyError, TypeError, AttributeError, exceptions.GoogleAuthError):
        # Without a cause: it could show a part of the file, which holds a key.
        raise ConfigurationError(
            f"credentials_file: {path} is not the key file of a service account",
            field="credentials_file",
            remedy="Give the JSON file that Google offered for download, readable by this process.",
        ) from None

    def fetch() -> str:
        with httpx.Client(verify=trusting(ca_file, public=True), timeout=timeout) as client:
            account.refresh(_Request(client))
        return str(account.token)

    return AccessTokens(fetch, lambda: bool(account.expired))


def _fetched(fetch: Callable[[], str]) -> str:
    try:
        token: object = fetch()
    except (OSError, exceptions.TransportError, httpx.HTTPError) as error:
        raise NoToken(type(error).__name__, passing=True) from error
    except exceptions.GoogleAuthError as error:
        raise NoToken(type(error).__name__, passing=error.retryable) from error
    except Exception as error:
        raise NoToken(type(error).__name__, passing=False) from error
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise NoToken("NoUsableToken", passing=False)
    return token


class _Request(transport.Request):
    """google-auth's requests, made by httpx."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> _Response:
        try:
            return _Response(self._client.request(method, url, content=body, headers=headers))
        except httpx.HTTPError as error:
            raise exceptions.TransportError(type(error).__name__) from error  # type: ignore[no-untyped-call]  # google-auth has no types here


class _Response(transport.Response):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def data(self) -> bytes:
        return self._response.content
