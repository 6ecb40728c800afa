"""What became of a publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

import msgspec

EventHandler = Callable[..., Any]
"""A plain function or an async one; it takes the event, and on a bus with an inbox the connection too."""

Remote = Literal["none", "sent", "filtered", "failed", "unknown"]
"""What became of the copy for other processes; `unknown`: it may have been sent."""


class HandlerFailure(msgspec.Struct, frozen=True):
    """A handler that raised, and what it raised."""

    handler: EventHandler
    error: Exception

    def __str__(self) -> str:
        return f"{self.handler!r} -> {self.error!r}"


class _Local(msgspec.Struct, frozen=True):
    event: object
    handlers_invoked: tuple[EventHandler, ...]
    errors: tuple[HandlerFailure, ...]


class PublishResult(_Local, frozen=True, kw_only=True):
    """Which handlers ran, which of them failed, and whether the event left the process."""

    event_id: UUID | None = None
    remote: Remote = "none"
    receivers: int | None = None
    """How many queues of other processes and groups got the event; None where the transport cannot tell."""

    @property
    def ok(self) -> bool:
        """Whether no handler failed and nothing went wrong on the way out."""
        return not self.errors

    @property
    def handled_count(self) -> int:
        """How many handlers ran, the failing ones included."""
        return len(self.handlers_invoked)

    def raise_if_errors(self) -> None:
        """Raise all failures together, if there are any."""
        if self.errors:
            name = type(self.event).__name__
            errors = [failure.error for failure in self.errors]
            raise ExceptionGroup(f"publishing {name} failed: {'; '.join(map(str, self.errors))}", errors)
