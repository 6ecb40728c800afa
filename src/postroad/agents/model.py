"""Agents, their subscriptions, events and queues: the data, its limits, the settings and the tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from msgspec import Meta

from postroad.arguments import check, seconds_between, whole_number
from postroad.errors import AgentNotFound, ConfigurationError, InvalidEvent, InvalidInput, InvalidName
from postroad.queues import MAX_VISIBILITY
from postroad.settings import dispatch_delay_text
from postroad.streams import Name

Order = Literal["producer", "total"]
Accept = Literal["listed", "all"]
PairState = Literal["active", "paused", "draining"]
OrderChoice = Annotated[Order, Meta(description="is neither 'producer' nor 'total'")]
AcceptChoice = Annotated[Accept, Meta(description="is neither 'listed' nor 'all'")]
MAX_LIST: Final = 100
MAX_OVERLAP: Final = 604_800.0
_MAX_DELAY: Final = 300.0
_ID: Final = r"[A-Za-z0-9_-]{1,64}"
_AGENT_ID = re.compile(_ID)
MAX_EVENT_TYPE: Final = 256
MAX_EVENT_TYPES: Final = 20
_ANY_BEHIND: Final = ".*"
_TOKEN = re.compile(rf"pr_({_ID})\.[A-Za-z0-9_-]{{43}}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS: Final = 253_402_300_800_000

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Registered:
    """A new agent with its token, which is shown only once.

    Attributes:
        agent_id: Its id.
        token: Its token.
        created_at: When it was registered.
        queue_url: Its queue on SQS; None elsewhere.
    """

    agent_id: str
    token: str
    created_at: str
    queue_url: str | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One listener's subscription to one producer.

    Attributes:
        producer_id: The agent that publishes.
        subscriber_id: The agent that listens.
        created_at: Since when.
        state: Whether it is active or paused.
    """

    producer_id: str
    subscriber_id: str
    created_at: str
    state: PairState
    event_types: tuple[str, ...] | None = None
    """The types that are delivered, each exact or `prefix.*`; None for all."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent and the first hundred producers it listens to.

    Attributes:
        agent_id: Its id.
        created_at: When it was registered.
        order: Whether its events have one order for each producer or one for all.
        accept: Who may subscribe to it.
        subscriptions: The producers it listens to.
        queue_url: Its queue on SQS; None elsewhere.
    """

    agent_id: str
    created_at: str
    order: Order
    accept: Accept
    subscriptions: Sequence[Subscription]
    queue_url: str | None = None


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """An event to publish under an agent's id.

    Args:
        agent_id: The producer.
        event_type: 1 to 256 printable characters.
        data: A JSON object. The whole event may have 262,144 bytes of JSON.
        timestamp: When it happened, with a time zone; by default now.
        event_id: 1 to 128 printable characters; by default a new UUID. Set it to make repeats recognisable.

    Example:
        AgentEvent("ann", "order.placed", {"id": 7})
    """

    agent_id: str
    event_type: str
    data: dict[str, Any]
    timestamp: str | datetime | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPublishResult:
    """Where an event is on the stream, or why it is not there.

    Attributes:
        ok: Whether the event is durable.
        event_id: Its id.
        shard: Where it is on the stream.
        sequence: Its place there.
        error: Why it was not stored.
    """

    ok: bool
    event_id: str | None
    shard: str | None
    sequence: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """A part of a list.

    Attributes:
        items: The entries.
        next_cursor: Pass it to get the next part; None on the last one.
    """

    items: Sequence[T_co]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was removed together with an agent.

    Attributes:
        discarded: Events that waited in its queue.
        subscriptions: Producers it listened to.
        subscribers: Agents that listened to it.
    """

    discarded: int
    subscriptions: int
    subscribers: int


@dataclass(frozen=True, slots=True)
class LaneStats:
    """The counters of an agent's queue. None stands for a number that the store does not know.

    Attributes:
        visible: Events that can be received.
        in_flight: Events that are leased.
        delayed: Events that are received later.
        held: Events that wait for the end of the hold-back window, or for `resume`.
        dead: Dead letters.
        oldest_age_seconds: The age, in seconds, of the oldest event that can be received.
    """

    visible: int
    in_flight: int
    delayed: int
    held: int | None
    dead: int | None
    oldest_age_seconds: float | None


DeliveryState = Literal["held", "waiting", "paused", "in_flight", "returned", "dead", "settled"]
"""`held` until the hold-back window ends; `returned`: released, or its lease has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDelivery:
    """How far an event is on its way to one subscriber."""

    event_id: str
    event_type: str
    producer_id: str
    subscriber_id: str
    message_id: str
    arrived_at: datetime
    state: DeliveryState
    receives: int = 0
    first_received_at: datetime | None = None
    due_seconds: float = 0.0
    """Until when its lease or its delay lasts."""
    error: str | None = None
    dead_at: datetime | None = None
    head: str | None = None
    """The message of its group that has to be settled before it."""


@dataclass(frozen=True, slots=True)
class RunStats:
    """What one round of a runner did.

    Attributes:
        read: Events read from the stream.
        written: Rows written for subscribers.
        released: Rows given to their queues.
        rejected: Rows that were refused for good.
    """

    read: int = 0
    written: int = 0
    released: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The checked settings of the agents of one process."""

    dispatch_delay: float = 0.0
    """Seconds that an event is held back so that events of several producers can be merged by time."""
    retention: float = 604_800.0
    """Seconds that events are kept for listeners and replays."""
    max_receives: int = 5
    """An event becomes a dead letter after this many receives without an ack."""
    visibility: float = 30.0
    """Seconds that a received event stays leased unless the receiver asks for another time."""
    validate: bool = True
    """Whether `subscribe` refuses producers that are not registered."""
    stream: str = "agent-events"
    """The stream that events are published to."""


def checked(
    *, dispatch_delay: float | None, retention: float, max_receives: int, visibility: float, validate: bool, stream: str
) -> AgentSettings:
    """Return the settings, or raise `ConfigurationError` with the field that is invalid."""
    check(stream, Name, "stream", InvalidName)
    delay: Any = dispatch_delay
    if delay is None:
        delay = dispatch_delay_text() or 0.0
        with suppress(ValueError):  # The check names the variable.
            delay = float(delay)
    check(delay, seconds_between(0, _MAX_DELAY), "DISPATCH_DELAY_SECONDS", ConfigurationError)
    check(retention, seconds_between(1, 31_536_000), "retention", ConfigurationError)
    check(max_receives, whole_number(1, 1_000), "max_receives", ConfigurationError)
    check(visibility, seconds_between(0, MAX_VISIBILITY), "visibility", ConfigurationError)
    return AgentSettings(
        dispatch_delay=float(delay),
        retention=float(retention),
        max_receives=max_receives,
        visibility=float(visibility),
        validate=bool(validate),
        stream=stream,
    )


def is_agent_id(agent_id: object) -> bool:
    return isinstance(agent_id, str) and _AGENT_ID.fullmatch(agent_id) is not None


def check_agent_id(agent_id: object, *, field: str = "agent_id") -> str:
    if not is_agent_id(agent_id):
        raise InvalidName(
            f"{field}: {agent_id!r} is not an agent id", field=field, remedy="Use 1 to 64 letters, digits, '_' or '-'."
        )
    return str(agent_id)


def checked_event_types(event_types: object, *, field: str = "event_types") -> tuple[str, ...] | None:
    """Return the types of a subscription, each once and in order, or raise `InvalidInput`; None stands for all."""
    if event_types is None:
        return None
    if isinstance(event_types, str) or not isinstance(event_types, Sequence):
        raise _no_types(field, f"{repr(event_types)[:60]} is not a list")
    if not 1 <= len(event_types) <= MAX_EVENT_TYPES:
        raise _no_types(field, f"{len(event_types)} types are not 1 to {MAX_EVENT_TYPES}")
    named = [checked_event_type(each, field=f"{field}[{index}]") for index, each in enumerate(event_types)]
    return tuple(dict.fromkeys(named))


def checked_event_type(event_type: object, *, field: str = "event_type") -> str:
    """Return a type as subscriptions and handlers name it, exact or `prefix.*`, or raise `InvalidInput`."""
    if not isinstance(event_type, str) or not 1 <= len(event_type) <= MAX_EVENT_TYPE or not event_type.isprintable():
        raise _no_types(field, f"{repr(event_type)[:60]} is not 1 to {MAX_EVENT_TYPE} printable characters")
    if "*" in event_type.removesuffix(_ANY_BEHIND) or event_type == _ANY_BEHIND:
        raise _no_types(field, f"{event_type[:60]!r} has a '*' elsewhere than behind 'prefix.'")
    return event_type


def _no_types(field: str, why: str) -> InvalidInput:
    remedy = f"Name 1 to {MAX_EVENT_TYPES} types, each exact or like 'order.*'; leave them out for all events."
    return InvalidInput(f"{field}: {why}", field=field, remedy=remedy)


def takes_type(event_types: Collection[str] | None, event_type: str) -> bool:
    """Return whether an event of this type is among the types, each exact or `prefix.*`; None takes all."""
    if event_types is None or event_type in event_types:
        return True
    return any(each.endswith(_ANY_BEHIND) and event_type.startswith(each[:-1]) for each in event_types)


def not_found(agent_id: object) -> AgentNotFound:
    """Return the error for an id that does not exist; an id that is not the caller's gets the same one."""
    return AgentNotFound(f"agent {str(agent_id)[:80]!r} does not exist")


def new_token(agent_id: str) -> str:
    """Return a new secret. A token names its agent, so that it is looked up by id and compared with a stored hash."""
    return f"pr_{agent_id}.{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return the hash of a token, which is all that is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def claimed_id(token: object) -> str | None:
    """Return the agent that the token names, or None if this is not an agent's token."""
    match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    return None if match is None else match[1]


def matches(token: str, stored: str | None) -> bool:
    """Return whether the stored hash is this token's, in constant time."""
    return stored is not None and hmac.compare_digest(digest(token), stored)


def normal_time(value: object, field: str = "timestamp") -> str:
    """Return a time between 1970 and 9999 in UTC with milliseconds and 'Z', or raise `InvalidEvent`."""
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(parsed, datetime) and parsed.tzinfo is not None and parsed.astimezone(UTC) >= _EPOCH:
            return now_text(parsed)
    except (ValueError, OverflowError):
        pass
    why = f"{field}: {repr(value)[:60]} is not a time of ISO 8601 with a zone, from 1970 to 9999"
    raise InvalidEvent(why, field=field, remedy="Write a time such as 2025-07-01T12:00:00.000Z, or leave it out.")


def now_text(now: datetime) -> str:
    """Return a time as it is stored: UTC, cut to milliseconds, 'Z'."""
    return f"{now.astimezone(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def milliseconds(text: str) -> int:
    """Return a time that `now_text` wrote as milliseconds since 1970."""
    return round((datetime.fromisoformat(text) - _EPOCH).total_seconds() * 1_000)


def time_text(milliseconds: int) -> str:
    """Return milliseconds since 1970 as text; a number out of range gives the last millisecond of 9999."""
    if not 0 <= milliseconds < _END_MS:
        milliseconds = _END_MS - 1
    seconds, rest = divmod(milliseconds, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]}.{rest:03d}Z"
