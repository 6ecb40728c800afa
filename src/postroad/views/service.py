"""The running service and its tokens as the CLI prints them and the HTTP API answers them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

PartState = Literal["running", "starting", "failed"]
Scope = Literal["read", "publish", "operate", "admin"]


class Health(msgspec.Struct):
    """The process lives."""

    status: Literal["ok"]
    version: str


class Ready(msgspec.Struct):
    """Whether the server can do its work, check by check."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


class Part(msgspec.Struct, frozen=True):
    """One part of a running `postroad up`."""

    name: str
    process: str
    pid: int | None
    state: PartState
    restarts: int = 0
    missing: str | msgspec.UnsetType = msgspec.UNSET
    """What it waits for, while something that it needs is away."""


class BackendShown(msgspec.Struct):
    """Where the data lies."""

    url: str
    kind: str


class Status(msgspec.Struct):
    """What runs."""

    version: str
    uptime_seconds: float
    backend: BackendShown
    read_only: bool
    parts: list[Part]


class TokenRow(msgspec.Struct):
    """A token without its secret."""

    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None


class TokenMade(TokenRow):
    """A token with its secret, which is shown this once."""

    token: str


class TokenPage(msgspec.Struct):
    """Tokens by name."""

    items: list[TokenRow]
    next_cursor: str | msgspec.UnsetType | None = msgspec.UNSET
    """None on the last page; left out where all are listed at once."""
