"""The limits of agents and their events, checked before anything changes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from postroad.agents.model import Accept, AgentEvent, Order
from postroad.errors import (
    AgentNotFound,
    EventTooLarge,
    InvalidEvent,
    InvalidMessage,
    InvalidName,
)
from postroad.events import refuse_what_json_cannot_hold, uuid7
from postroad.telemetry import valid_traceparent

MAX_EVENT_BYTES: Final = 262_144
MAX_EVENT_TYPE: Final = 256
MAX_EVENT_ID: Final = 128
MAX_LIST: Final = 100
MAX_DELAY: Final = 300.0
MAX_OVERLAP: Final = 604_800.0
AGENT_ID: Final = r"[A-Za-z0-9_-]{1,64}"
_AGENT_ID = re.compile(AGENT_ID)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS: Final = 253_402_300_800_000
_NUL: Final = b"\\u0000"
OrderChoice = Annotated[Order, Meta(description="is neither 'producer' nor 'total'")]
AcceptChoice = Annotated[Accept, Meta(description="is neither 'listed' nor 'all'")]


class WireEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event as it lies on the stream."""

    agentId: str
    timestamp: str
    eventType: str
    data: msgspec.Raw
    eventId: str
    traceparent: str | None = None


def check_agent_id(agent_id: object, *, field: str = "agent_id") -> str:
    """Return the id, or refuse what is none."""
    if not isinstance(agent_id, str) or _AGENT_ID.fullmatch(agent_id) is None:
        raise InvalidName(
            f"{field}: {agent_id!r} is not an agent id",
            field=field,
            remedy="Use 1 to 64 letters, digits, '_' or '-'.",
        )
    return agent_id


def is_agent_id(agent_id: object) -> bool:
    """Whether an agent may have this id."""
    return isinstance(agent_id, str) and _AGENT_ID.fullmatch(agent_id) is not None


def not_found(agent_id: object) -> AgentNotFound:
    """The error for an id that nobody has; the same for one that is not the caller's."""
    return AgentNotFound(f"agent {str(agent_id)[:80]!r} does not exist")


def encode_event(event: AgentEvent, *, now: datetime, traceparent: str | None = None) -> tuple[str, bytes]:
    """The event's id and its JSON for the stream, or `InvalidEvent` naming the field."""
    check_agent_id(event.agent_id, field="agentId")
    event_type = check_printable(event.event_type, "eventType", MAX_EVENT_TYPE)
    event_id = str(uuid7()) if event.event_id is None else check_printable(event.event_id, "eventId", MAX_EVENT_ID)
    wire = WireEvent(
        agentId=event.agent_id,
        timestamp=now_text(now) if event.timestamp is None else normal_time(event.timestamp),
        eventType=event_type,
        data=msgspec.Raw(_data(event.data)),
        eventId=event_id,
    )
    encoded = msgspec.json.encode(wire)
    check_size(len(encoded))
    trace = valid_traceparent(traceparent)
    return event_id, encoded if trace is None else _traced(wire, trace, encoded)


def _traced(wire: WireEvent, traceparent: str, bare: bytes) -> bytes:
    """The event with its trace, unless that makes it too large: an event goes before its trace."""
    traced = msgspec.json.encode(msgspec.structs.replace(wire, traceparent=traceparent))
    return traced if len(traced) <= MAX_EVENT_BYTES else bare


def check_size(size: int) -> None:
    """Refuse an event that is too large."""
    if size > MAX_EVENT_BYTES:
        raise EventTooLarge(f"the event has {size} bytes of JSON, above the limit of {MAX_EVENT_BYTES}", field="data")


def check_printable(value: object, field: str, longest: int) -> str:
    """Return the text, or refuse what is empty, too long or not printable."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        shown = f"{value[:40]!r}" if isinstance(value, str) else type(value).__name__
        raise InvalidEvent(f"{field}: {shown} is not 1 to {longest} printable characters", field=field)
    return value


def no_object(value: object) -> InvalidEvent:
    """Return the error for a payload that is no JSON object."""
    kind = "null" if value is None else type(value).__name__
    return InvalidEvent(f"data: {kind} is not a JSON object", field="data")


def refuse_nul(encoded: bytes) -> None:
    """Refuse a payload with the character NUL, which SQS and terminals do not take."""
    if _NUL in encoded and _holds_nul(msgspec.json.decode(encoded)):
        raise InvalidEvent("data: holds the character NUL", field="data")


def normal_time(value: object, field: str = "timestamp") -> str:
    """The time in UTC with milliseconds and 'Z', or `InvalidEvent`."""
    return now_text(moment(value, field))


def moment(value: object, field: str = "timestamp") -> datetime:
    """A time with a zone, 1970 to 9999, in UTC."""
    parsed = value
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            parsed = None
    if not isinstance(parsed, datetime) or parsed.tzinfo is None:
        raise _no_time(value, field)
    try:
        parsed = parsed.astimezone(UTC)
    except OverflowError:
        raise _no_time(value, field) from None
    if parsed < _EPOCH:
        raise _no_time(value, field)
    return parsed


def now_text(now: datetime) -> str:
    """A time as it is stored: UTC, cut to milliseconds, 'Z'."""
    return f"{now.astimezone(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def milliseconds(text: str) -> int:
    """Milliseconds since 1970 of a time that `now_text` wrote."""
    return round((datetime.fromisoformat(text) - _EPOCH).total_seconds() * 1_000)


def time_text(milliseconds: int) -> str:
    """The text of milliseconds since 1970; the end of time for a number that is none of a time."""
    if not 0 <= milliseconds < _END_MS:
        milliseconds = _END_MS - 1
    seconds, rest = divmod(milliseconds, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]}.{rest:03d}Z"


def _data(value: object) -> bytes:
    if not isinstance(value, dict):
        raise no_object(value)
    try:
        refuse_what_json_cannot_hold(value)
        encoded = msgspec.json.encode(value)
    except InvalidMessage as error:
        raise InvalidEvent(f"data: {error.message}", field="data") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"data: cannot be written as JSON: {error}", field="data") from None
    refuse_nul(encoded)
    return encoded


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or _holds_nul(child) for key, child in value.items())
    return isinstance(value, list) and any(_holds_nul(child) for child in value)


def _no_time(value: object, field: str) -> InvalidEvent:
    shown = repr(value)[:60]
    return InvalidEvent(
        f"{field}: {shown} is not a time of ISO 8601 with a zone, from 1970 to 9999",
        field=field,
        remedy="Write a time such as 2025-07-01T12:00:00.000Z, or leave it out.",
    )
