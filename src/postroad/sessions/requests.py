"""What goes between a main loop and those who ask it: requests, answers, and the limits of the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from postroad.events import event, uuid7
from postroad.sessions.telemetry import PromptExecuted, PromptResponse, ToolInvoked, utc_now

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")


@event(name="postroad.sessions:Budget")
class Budget:
    """The tokens that a request may cost; None is no limit. The adapter keeps to it."""

    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{limit.name}: {value!r} is not a whole number from 1 on")


@dataclass(frozen=True, slots=True)
class MainLoopConfig:
    """The limits of requests that bring none of their own."""

    deadline: datetime | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        checked_deadline(self.deadline)


@event(name="postroad.sessions:MainLoopRequest")
class MainLoopRequest(Generic[RequestT]):
    """Asks a main loop to work; its limits win over the loop's."""

    request: RequestT
    budget: Budget | None = None
    deadline: datetime | None = None
    request_id: UUID = field(default_factory=uuid7)
    created_at: datetime = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        checked_deadline(self.deadline)


@event(name="postroad.sessions:MainLoopCompleted")
class MainLoopCompleted(Generic[OutputT]):
    """The work is done."""

    request_id: UUID
    response: PromptResponse[OutputT]
    session_id: UUID
    completed_at: datetime = field(default_factory=utc_now)


@event(name="postroad.sessions:MainLoopFailed")
class MainLoopFailed:
    """The work failed, and why."""

    request_id: UUID
    error: Exception
    session_id: UUID | None = None
    failed_at: datetime = field(default_factory=utc_now)


def checked_deadline(deadline: Any) -> datetime | None:
    """The deadline, when it has a time zone."""
    if deadline is None or (isinstance(deadline, datetime) and deadline.utcoffset() is not None):
        return deadline
    raise ValueError(f"deadline: {deadline!r} is not a datetime with a time zone; use datetime.now(UTC) + …")


def values_in(event: object) -> Iterator[tuple[object, str]]:
    """Each dataclass in the result of a telemetry event, with its place in it."""
    if isinstance(event, ToolInvoked):
        found = getattr(event.result, "value", None)
    elif isinstance(event, PromptExecuted):
        found = getattr(event.result, "output", None)
    else:
        return
    for index, value in enumerate(found if isinstance(found, list | tuple) else [found]):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield value, f" [{index}]"
