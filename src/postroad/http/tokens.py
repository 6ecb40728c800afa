"""Tokens: who may do what. The file holds hashes only; a secret is shown once, when it is made."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidInput, TokenExists, TokenNotFound
from postroad.http.private import locked, write_private
from postroad.views import Scope, TokenMade, TokenRow

SCOPES: tuple[Scope, ...] = ("read", "publish", "operate", "admin")
ADMIN = "admin"
PREFIX = "pr_"
NAME = r"[A-Za-z0-9._-]{1,64}"
MAX_SECONDS = 315_360_000.0


class Token(msgspec.Struct, frozen=True):
    """One token as the file keeps it."""

    name: str
    scope: Scope
    sha256: str
    created_at: datetime
    expires_at: datetime | None = None

    @property
    def row(self) -> TokenRow:
        """The token as it is listed."""
        return TokenRow(self.name, self.scope, self.created_at, self.expires_at)

    def made(self, secret: str) -> TokenMade:
        """Return the token with its secret, which is shown this once."""
        return TokenMade(self.name, self.scope, self.created_at, self.expires_at, secret)


class _Contents(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...] = ()


def reaches(scope: Scope, needed: Scope) -> bool:
    """Whether a scope includes the needed one: each includes those before it."""
    return SCOPES.index(scope) >= SCOPES.index(needed)


def digest(secret: str) -> str:
    """What is stored of a secret. It is random and long, so a plain hash cannot be turned back."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class TokenFile:
    """The tokens of one data file. Several processes may change it; each change is one step."""

    def __init__(self, path: Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self._clock = clock

    def tokens(self) -> tuple[Token, ...]:
        """All tokens, by name."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_Contents).tokens
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"{self.path}: is not a file of tokens: {error}", remedy="Restore it, or remove it and make new tokens."
            ) from error

    def create(self, name: str, scope: Scope, *, expires_in: float | None = None) -> tuple[Token, str]:
        """Make a token and return it with its secret, which is nowhere else."""
        check_token(name, scope, expires_in)
        with locked(self.path.parent):
            tokens = self.tokens()
            if name == ADMIN or any(token.name == name for token in tokens):
                raise TokenExists(f'token "{name}" exists', field="name")
            return self._add(tokens, name, scope, expires_in)

    def renew(self, name: str) -> tuple[Token, str]:
        """Give the token a new secret; the former one opens nothing from now on."""
        with locked(self.path.parent):
            former = self.named(name)
            lifetime = None if former.expires_at is None else (former.expires_at - former.created_at).total_seconds()
            others = [token for token in self.tokens() if token.name != name]
            return self._add(others, name, former.scope, lifetime)

    def revoke(self, name: str) -> None:
        """Forget the token; running servers follow within a second."""
        with locked(self.path.parent):
            self.named(name)
            self._write([token for token in self.tokens() if token.name != name])

    def named(self, name: str) -> Token:
        """The token of this name, or `TokenNotFound`."""
        for token in self.tokens():
            if token.name == name:
                return token
        raise TokenNotFound(f'token "{name}" does not exist')

    def _add(self, others: Sequence[Token], name: str, scope: Scope, expires_in: float | None) -> tuple[Token, str]:
        secret = PREFIX + secrets.token_urlsafe(32)
        now = self._clock.now()
        expires_at = None if expires_in is None else now + timedelta(seconds=expires_in)
        token = Token(name=name, scope=scope, sha256=digest(secret), created_at=now, expires_at=expires_at)
        self._write([*others, token])
        return token, secret

    def _write(self, tokens: Sequence[Token]) -> None:
        contents = _Contents(tuple(sorted(tokens, key=lambda token: token.name)))
        write_private(self.path, msgspec.json.encode(contents))


def check_token(name: object, scope: object, expires_in: object) -> None:
    """Refuse what no token can be made of, naming the field."""
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise InvalidInput(f"name: {name!r} is not 1 to 64 letters, digits, '.', '_' or '-'", field="name")
    if scope not in SCOPES:
        raise InvalidInput(f"scope: {scope!r} is none of {', '.join(SCOPES)}", field="scope")
    is_number = isinstance(expires_in, int | float) and not isinstance(expires_in, bool)
    if expires_in is not None and not (is_number and 0 < expires_in <= MAX_SECONDS):  # type: ignore[operator] # checked just before
        raise InvalidInput(f"expires_in: {expires_in!r} is not a number of seconds above 0", field="expires_in")
