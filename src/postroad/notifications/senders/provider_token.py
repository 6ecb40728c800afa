"""The token by which Apple knows a team: signed with its key, used for 50 minutes, renewed no sooner than after 20."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from postroad.clock import Clock
from postroad.errors import ConfigurationError

_REUSED_SECONDS: Final = 50 * 60
_SOONEST_SECONDS: Final = 20 * 60


@dataclass(frozen=True, slots=True)
class _Signed:
    text: str
    at: float


class ProviderToken:
    """Gives all threads the same token."""

    def __init__(self, key: str, *, key_id: str, team_id: str, clock: Clock) -> None:
        self._key = _private_key(key)
        self._key_id = key_id
        self._team_id = team_id
        self._clock = clock
        self._lock = threading.Lock()
        self._signed: _Signed | None = None

    def current(self) -> str:
        """The token to use now."""
        with self._lock:
            if self._signed is None or self._age(self._signed) >= _REUSED_SECONDS:
                self._signed = self._sign()
            return self._signed.text

    def instead_of(self, refused: str) -> str | None:
        """Another token than the refused one; None while that one is too young for Apple to take a new one."""
        with self._lock:
            if self._signed is None or self._signed.text == refused:
                if self._signed is not None and self._age(self._signed) < _SOONEST_SECONDS:
                    return None
                self._signed = self._sign()
            return self._signed.text

    def _age(self, signed: _Signed) -> float:
        return self._clock.monotonic() - signed.at

    def _sign(self) -> _Signed:
        claims = {"iss": self._team_id, "iat": int(self._clock.now().timestamp())}
        text = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
        return _Signed(text, self._clock.monotonic())


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
