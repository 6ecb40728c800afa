"""The tokens by which Apple knows a team and Google a project: made or fetched once, kept until they expire."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from typing import Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from postroad.clock import Clock
from postroad.errors import ConfigurationError

_REUSED_SECONDS: Final = 50 * 60
_SOONEST_SECONDS: Final = 20 * 60


class ProviderToken:
    """Gives all threads the same token."""

    def __init__(self, key: str, *, key_id: str, team_id: str, clock: Clock) -> None:
        self._key = _private_key(key)
        self._key_id = key_id
        self._team_id = team_id
        self._clock = clock
        self._lock = threading.Lock()
        self._text: str | None = None
        self._signed_at = 0.0
        self._renewed_at = -math.inf

    def current(self) -> str:
        """The token to use now."""
        with self._lock:
            if self._text is None:
                return self._sign()
            return self._renew() if self._since(self._signed_at) >= _REUSED_SECONDS else self._text

    def instead_of(self, refused: str) -> str | None:
        """Another token than the refused one; None while the last renewal is too young for Apple to take another."""
        with self._lock:
            if self._text != refused:
                return self._text
            return self._renew() if self._since(self._renewed_at) >= _SOONEST_SECONDS else None

    def _since(self, moment: float) -> float:
        return self._clock.monotonic() - moment

    def _renew(self) -> str:
        self._renewed_at = self._clock.monotonic()
        return self._sign()

    def _sign(self) -> str:
        claims = {"iss": self._team_id, "iat": int(self._clock.now().timestamp())}
        self._text = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
        self._signed_at = self._clock.monotonic()
        return self._text


def _private_key(key: str) -> EllipticCurvePrivateKey:
    try:
        private = load_pem_private_key(key.encode(), None)
    except (AttributeError, TypeError, ValueError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        # Without a cause: it could show a part of the key.
        raise ConfigurationError(
            "key: is not a P-256 private key in PEM",
            field="key",
            remedy="Give the text of the .p8 file that Apple offered for download, without a password.",
        ) from None
    return private


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
