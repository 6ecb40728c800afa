"""What an agent's adapter tells about its work: prompts rendered, prompts executed, tools invoked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from postroad.events import event, uuid7
from postroad.sessions.slices import Values
from postroad.telemetry import get_logger

ValueT = TypeVar("ValueT")


def utc_now() -> datetime:
    """The default of every `created_at` here."""
    return datetime.now(UTC)


@event(name="postroad.sessions:TokenUsage")
class TokenUsage:
    """The tokens that one evaluation cost; None for what the provider does not tell."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """Input and output together; None when neither is known. Cached tokens are part of the input."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


@event(name="postroad.sessions:PromptResponse")
class PromptResponse(Generic[ValueT]):
    """What an adapter's evaluation of a prompt gave."""

    prompt_name: str
    text: str | None = None
    output: ValueT | None = None


@event(name="postroad.sessions:ToolResult")
class ToolResult(Generic[ValueT]):
    """What a tool gave back."""

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


Observer = Callable[[tuple[Any, ...], tuple[Any, ...]], object]


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """One observer's place; it is told of changes until it unsubscribes."""

    slice_type: type
    observer: Observer
    leave: Callable[[Subscription], None]

    def unsubscribe(self) -> None:
        """Tell the observer nothing more. Unsubscribing twice changes nothing."""
        self.leave(self)

    def tell(self, old: Values, new: Values) -> None:
        """Call the observer; what it raises is logged only, since the change has happened."""
        try:
            self.observer(old, new)
        except Exception as error:
            get_logger("sessions").error(
                "session_observer_failed",
                slice_type=self.slice_type.__qualname__,
                observer=getattr(self.observer, "__qualname__", repr(self.observer)),
                error=f"{type(error).__name__}: {error}",
            )
