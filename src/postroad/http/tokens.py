"""Tokens and their scopes. The file holds only hashes; a secret is shown once, when it is created."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.arguments import check, text
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.engine import translate
from postroad.errors import ConfigurationError, TokenExists, TokenNotFound, Unavailable
from postroad.views import Scope, TokenMade, TokenRow


def write_private(path: Path, data: bytes) -> None:
    """Replace the file in one step, readable by its owner only; a reader sees the old bytes or the new ones.

    Raises:
        StorageFull: The disk has no room for it.
        Unavailable: It cannot be written for another reason.
    """
    try:
        # mkstemp uses mode 0600 whatever the umask is.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise translate(error, path) from error


def read_secret(path: Path) -> str:
    """Return the secret in the file; raise `ConfigurationError` if it cannot be read or is empty."""
    try:
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error}", remedy="Name a readable file that holds one line."
        ) from error
    if not secret:
        raise ConfigurationError(f"{path}: is empty", remedy="Write the secret into it, or remove it to get a new one.")
    return secret


def kept_secret(path: Path, prefix: str = "") -> str:
    """Return the secret in the file, which is created on first use."""
    with locked(path.parent):
        if not path.exists():
            write_private(path, f"{prefix}{secrets.token_urlsafe(32)}\n".encode())
    return read_secret(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from changing private files of the folder."""
    # Lock the folder: a lock file would stay behind, and the data file has locks of its own.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


SCOPES: tuple[Scope, ...] = ("read", "publish", "operate", "admin")
ADMIN = "admin"
PREFIX = "pr_"
_LOOK_AGAIN_SECONDS = 0.25
NAME = r"[A-Za-z0-9._-]{1,64}"
MAX_SECONDS = 315_360_000.0
_NAME = text(NAME, "1 to 64 letters, digits, '.', '_' or '-'")
_SCOPE = text("|".join(SCOPES), f"one of {', '.join(SCOPES)}")
_EXPIRES_IN = Annotated[float, Meta(gt=0, le=MAX_SECONDS, description="a number of seconds above 0")] | None


class Token(msgspec.Struct, frozen=True):
    """One token as the file stores it."""

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
        """Return the token with its secret, which is shown only once."""
        return TokenMade(self.name, self.scope, self.created_at, self.expires_at, secret)


class _Contents(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...] = ()


def reaches(scope: Scope, needed: Scope) -> bool:
    """Return whether a scope includes the needed one; each includes those before it."""
    return SCOPES.index(scope) >= SCOPES.index(needed)


def digest(secret: str) -> str:
    """Return the hash that is stored of a secret; secrets are long and random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class TokenFile:
    """The tokens of one deployment. Several processes may change the file; each change is one step."""

    def __init__(self, path: Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self._clock = clock

    def tokens(self) -> tuple[Token, ...]:
        """Return all tokens, by name."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_Contents).tokens
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"{self.path}: is not a file of tokens: {error}", remedy="Restore it, or remove it and make new tokens."
            ) from error

    def create(self, name: str, scope: Scope, *, expires_in: float | None = None) -> tuple[Token, str]:
        """Create a token and return it with its secret, which is stored nowhere."""
        check_token(name, scope, expires_in)
        with locked(self.path.parent):
            tokens = self.tokens()
            if name == ADMIN or any(token.name == name for token in tokens):
                raise TokenExists(f'token "{name}" exists', field="name")
            return self._add(tokens, name, scope, expires_in)

    def renew(self, name: str) -> tuple[Token, str]:
        """Give the token a new secret; the previous one is revoked."""
        with locked(self.path.parent):
            former = self.named(name)
            lifetime = None if former.expires_at is None else (former.expires_at - former.created_at).total_seconds()
            others = [token for token in self.tokens() if token.name != name]
            return self._add(others, name, former.scope, lifetime)

    def revoke(self, name: str) -> None:
        """Revoke the token; running servers refuse it within a second."""
        with locked(self.path.parent):
            self.named(name)
            self._write([token for token in self.tokens() if token.name != name])

    def named(self, name: str) -> Token:
        """Return the token of this name; raise `TokenNotFound` if there is none."""
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
    """Raise `InvalidInput` with the field if no token can have these values."""
    check(name, _NAME, "name")
    check(scope, _SCOPE, "scope")
    check(expires_in, _EXPIRES_IN, "expires_in")


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller with a valid token."""

    name: str
    scope: Scope | Literal["agent"]
    agent: str | None = None
    """The agent whose token it is, which may use its own routes only."""


class Identities:
    """The valid tokens. A new one is valid at once; a revoked one for at most a quarter of a second more."""

    def __init__(self, file: TokenFile, *, admin: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = file
        self._admin = digest(admin)
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}
        self.version = 0
        """Increases whenever the tokens of the file have changed."""

    def of(self, secret: str) -> Identity | None:
        """Return the identity of the secret; None if it is unknown, revoked or expired."""
        return self.of_digest(digest(secret))

    def of_digest(self, hashed: str) -> Identity | None:
        """Return the identity of the secret that has this hash; None as above."""
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
        """Read the file again if it has changed."""
        self._looked_at = self._clock.monotonic()
        if (seen := self._signature()) != self._seen:
            self._tokens = {token.sha256: token for token in self._file.tokens()}
            self._seen = seen
            self.version += 1

    def _signature(self) -> tuple[int, int, int] | None:
        """Return what changes whenever the file is replaced."""
        try:
            status = self._file.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{self._file.path}: {error.strerror}") from error
        return status.st_ino, status.st_mtime_ns, status.st_size
