"""Who is asking: a secret is looked up among the tokens of the file and the admin's own."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Literal

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.http.tokens import ADMIN, Token, TokenFile, digest
from postroad.views import Scope

_LOOK_AGAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller whose token was recognised."""

    name: str
    scope: Scope | Literal["agent"]
    agent: str | None = None
    """The agent whose token it is; it reaches its own routes only."""


class Identities:
    """The tokens in force. A new one counts at once, a revoked one for a quarter of a second at most."""

    def __init__(self, file: TokenFile, *, admin: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = file
        self._admin = digest(admin)
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}
        self.version = 0
        """Grows whenever the tokens of the file have changed."""

    def of(self, secret: str) -> Identity | None:
        """The identity that the secret opens; None for one that is unknown, revoked or expired."""
        hashed = digest(secret)
        if hmac.compare_digest(hashed, self._admin):
            return Identity(ADMIN, "admin")
        if hashed not in self._tokens or self._clock.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
            self.look()
        token = self._tokens.get(hashed)
        if token is None or not hmac.compare_digest(token.sha256, hashed):
            return None
        if token.expires_at is not None and token.expires_at <= self._clock.now():
            return None
        return Identity(token.name, token.scope)

    def look(self) -> None:
        """See whether the file has changed."""
        self._looked_at = self._clock.monotonic()
        if (seen := self._signature()) != self._seen:
            self._tokens = {token.sha256: token for token in self._file.tokens()}
            self._seen = seen
            self.version += 1

    def _signature(self) -> tuple[int, int, int] | None:
        """What changes whenever the file is replaced."""
        try:
            status = self._file.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
