"""The events of sessions and main loops: what adapters report, requests and answers; and the registry of a bus."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from postroad.errors import DeadlineExceeded, InvalidMessage, MessageTooLarge
from postroad.events import EventRegistry, default_registry, event, uuid7
from postroad.receiving import context_of

ValueT = TypeVar("ValueT")
RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")


def utc_now() -> datetime:
    """Return the default of every `created_at` here."""
    return datetime.now(UTC)


@event(name="postroad.sessions:TokenUsage")
class TokenUsage:
    """The tokens that one evaluation used; None for those that the provider does not report."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """Input and output together; None if neither is known. Cached tokens are part of the input."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


@event(name="postroad.sessions:PromptResponse")
class PromptResponse(Generic[ValueT]):
    """The result of an adapter's evaluation of a prompt."""

    prompt_name: str
    text: str | None = None
    output: ValueT | None = None


@event(name="postroad.sessions:ToolResult")
class ToolResult(Generic[ValueT]):
    """The result of a tool."""

    message: str
    value: ValueT | None = None
    success: bool = True
    exclude_value_from_context: bool = False


@event(name="postroad.sessions:ToolInvoked")
class ToolInvoked:
    """An adapter has called a tool."""

    prompt_name: str
    adapter: str
    name: str
    params: Any
    result: Any
    session_id: UUID | None = None
    created_at: datetime = field(default_factory=utc_now)
    usage: TokenUsage | None = None
    rendered_output: str = ""
    call_id: str | None = None
    event_id: UUID = field(default_factory=uuid7)


@event(name="postroad.sessions:PromptExecuted")
class PromptExecuted:
    """An adapter has evaluated a prompt."""

    prompt_name: str
    adapter: str
    result: Any
    session_id: UUID | None = None
    created_at: datetime = field(default_factory=utc_now)
    usage: TokenUsage | None = None
    event_id: UUID = field(default_factory=uuid7)


@event(name="postroad.sessions:PromptRendered")
class PromptRendered:
    """An adapter is about to send a prompt."""

    prompt_ns: str
    prompt_key: str
    prompt_name: str | None
    adapter: str
    session_id: UUID | None = None
    render_inputs: tuple[Any, ...] = ()
    rendered_prompt: str = ""
    created_at: datetime = field(default_factory=utc_now)
    descriptor: Any = None
    event_id: UUID = field(default_factory=uuid7)


TELEMETRY = (ToolInvoked, PromptExecuted, PromptRendered)


@event(name="postroad.sessions:Budget")
class Budget:
    """The tokens that a request may use, in total, as input and as output; None means no limit.

    The adapter gets it and enforces it.
    """

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
    """The limits of requests that have none of their own."""

    deadline: datetime | None = None
    """The time after which no work begins; it needs a time zone."""
    budget: Budget | None = None
    """The tokens that a request may use."""

    def __post_init__(self) -> None:
        checked_deadline(self.deadline)


@event(name="postroad.sessions:MainLoopRequest")
class MainLoopRequest(Generic[RequestT]):
    """A request to a main loop; its limits win over the loop's."""

    request: RequestT
    budget: Budget | None = None
    deadline: datetime | None = None
    request_id: UUID = field(default_factory=uuid7)
    created_at: datetime = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        checked_deadline(self.deadline)


@event(name="postroad.sessions:MainLoopCompleted")
class MainLoopCompleted(Generic[OutputT]):
    """The answer to a request that succeeded."""

    request_id: UUID
    response: PromptResponse[OutputT]
    session_id: UUID
    completed_at: datetime = field(default_factory=utc_now)


@event(name="postroad.sessions:MainLoopFailed")
class MainLoopFailed:
    """The answer to a request that failed, with the error."""

    request_id: UUID
    error: Exception
    session_id: UUID | None = None
    failed_at: datetime = field(default_factory=utc_now)


def checked_deadline(deadline: Any) -> datetime | None:
    """Return the deadline, or raise ValueError if it has no time zone."""
    if deadline is None or (isinstance(deadline, datetime) and deadline.utcoffset() is not None):
        return deadline
    raise ValueError(f"deadline: {deadline!r} is not a datetime with a time zone; use datetime.now(UTC) + …")


def values_in(event: object) -> Iterator[tuple[object, str]]:
    """Yield each dataclass in the result of a telemetry event, with its place in it."""
    if isinstance(event, ToolInvoked):
        found = getattr(event.result, "value", None)
    elif isinstance(event, PromptExecuted):
        found = getattr(event.result, "output", None)
    else:
        return
    for index, value in enumerate(found if isinstance(found, list | tuple) else [found]):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield value, f" [{index}]"


_VALUES = (TokenUsage, PromptResponse, ToolResult, Budget, DeadlineExceeded, InvalidMessage, MessageTooLarge)


def registry_of(bus: object) -> EventRegistry:
    """Return the registry of the bus, else the default one, after adding the types of sessions to it."""
    found = getattr(bus, "registry", None)
    registry = found if isinstance(found, EventRegistry) else default_registry
    for cls in (*TELEMETRY, *_VALUES, MainLoopRequest, MainLoopCompleted, MainLoopFailed):
        known(cls, registry)
    return registry


def known(cls: type, registry: EventRegistry) -> str:
    """Return the name of the class in the registry; register it if it is missing."""
    return registry.known_name(cls) or registry.register(cls)


def event_id_of(event: object) -> str:
    """Return the id of the event's envelope, else its own; an event without one is new each time."""
    context = context_of(event)
    if context is not None:
        return str(context.envelope.event_id)
    own = getattr(event, "event_id", None)
    return str(uuid7() if own is None else own)


def session_id_of(event: object) -> str | None:
    """Return the session that the event names, if any."""
    context = context_of(event)
    own = getattr(event, "session_id", None)
    found = context.envelope.session_id if own is None and context is not None else own
    return None if found is None else str(found)
