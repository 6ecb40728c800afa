"""Events on their way: checked and published to the stream, read from it, and made into messages for subscribers."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from postroad.agents import model
from postroad.agents.model import AgentEvent, AgentPublishResult
from postroad.clock import Clock
from postroad.errors import AgentNotFound, EventTooLarge, HeldBack, InvalidEvent, InvalidMessage, PostroadError
from postroad.events import NUL, checked_bytes, place_of_nul, refuse_what_json_cannot_hold, sendable, uuid7
from postroad.streams import Record, Stream, StreamRecord
from postroad.telemetry import valid_traceparent

_MAX_BYTES: Final = 262_144
_MAX_EVENT_ID: Final = 128
_LONGEST_REASON: Final = 1_000
_NAMESPACE: Final = uuid.UUID("6f0a7f1e-9d0b-5c53-8d7b-0d7a3c1f5e21")
_CODES: dict[type[Exception], str] = {AgentNotFound: "agent_not_found", HeldBack: "held_back"}

T = TypeVar("T")


class WireEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event as it is on the stream."""

    agentId: str
    timestamp: str
    eventType: str
    data: msgspec.Raw
    eventId: str
    traceparent: str | None = None


class StreamEvent(msgspec.Struct, frozen=True):
    """An event as it was read from the stream; `data` is JSON as it was published."""

    producer_id: str
    event_id: str
    event_type: str
    occurred_ms: int
    data: bytes
    shard: str
    sequence: str
    arrived_at: datetime
    traceparent: str | None = None


class Rejected(msgspec.Struct, frozen=True):
    """A record that can never be handled, and why."""

    reason: str
    shardId: str
    sequenceNumber: str
    partitionKey: str
    data: str

    def to_json(self) -> bytes:
        return sendable(msgspec.json.encode(msgspec.structs.replace(self, reason=self.reason[:_LONGEST_REASON])))


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event for one subscriber; `agentId` is the producer."""

    agentId: str
    timestamp: str
    eventType: str
    data: msgspec.Raw
    eventId: str
    subscriberId: str
    sequenceNumber: str
    late: bool = False
    replay: bool = False
    traceparent: str | None = None

    def to_json(self) -> bytes:
        return sendable(msgspec.json.encode(self))


class Published(NamedTuple):
    """The outcome of one event."""

    event_id: str | None
    shard: str | None = None
    sequence: str | None = None
    error: Exception | None = None

    @property
    def result(self) -> AgentPublishResult:
        error = None if self.error is None else _CODES.get(type(self.error)) or str(self.error)
        return AgentPublishResult(self.error is None, self.event_id, self.shard, self.sequence, error)


def publish(
    events: Sequence[AgentEvent],
    stream: Stream,
    known: Callable[[Collection[str]], set[str]],
    clock: Clock,
    *,
    traceparent: str | None = None,
) -> list[Published]:
    """Put the events on the stream; after one of an agent fails, its later ones of this call are not sent."""
    registered = known({event.agent_id for event in events if model.is_agent_id(event.agent_id)})
    outcomes: list[Published | None] = [None] * len(events)
    stopped: set[str] = set()
    records: list[tuple[int, str, Record]] = []
    for index, event in enumerate(events):
        try:
            if str(event.agent_id) in stopped:
                raise HeldBack(f'an earlier event of agent "{event.agent_id}" failed')
            event_id, data = encode_event(event, now=clock.now(), traceparent=traceparent)
            if event.agent_id not in registered:
                raise model.not_found(event.agent_id)
        except PostroadError as error:
            stopped.add(str(event.agent_id))
            outcomes[index] = Published(event.event_id, error=error)
        else:
            records.append((index, event_id, Record(key=event.agent_id, data=data)))
    for (index, event_id, _), put in zip(records, stream.put([record for *_, record in records]), strict=True):
        outcomes[index] = Published(event_id, put.shard, put.sequence, put.error)
    return [outcome for outcome in outcomes if outcome is not None]


def encode_event(event: AgentEvent, *, now: datetime, traceparent: str | None = None) -> tuple[str, bytes]:
    """Return the event's id and its JSON for the stream, or raise `InvalidEvent` with the field that is invalid."""
    model.check_agent_id(event.agent_id, field="agentId")
    event_type = _printable(event.event_type, "eventType", model.MAX_EVENT_TYPE)
    event_id = str(uuid7()) if event.event_id is None else _printable(event.event_id, "eventId", _MAX_EVENT_ID)
    wire = WireEvent(
        agentId=event.agent_id,
        timestamp=model.now_text(now) if event.timestamp is None else model.normal_time(event.timestamp),
        eventType=event_type,
        data=msgspec.Raw(_data(event.data)),
        eventId=event_id,
    )
    encoded = msgspec.json.encode(wire)
    _check_size(len(encoded))
    trace = valid_traceparent(traceparent)
    if trace is not None:
        traced = msgspec.json.encode(msgspec.structs.replace(wire, traceparent=trace))
        # An event that its trace would make too large goes without it.
        encoded = traced if len(traced) <= _MAX_BYTES else encoded
    return event_id, encoded


def _check_size(size: int) -> None:
    if size > _MAX_BYTES:
        raise EventTooLarge(f"the event has {size} bytes of JSON, above the limit of {_MAX_BYTES}", field="data")


def _printable(value: object, field: str, longest: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        shown = f"{value[:40]!r}" if isinstance(value, str) else type(value).__name__
        raise InvalidEvent(f"{field}: {shown} is not 1 to {longest} printable characters", field=field)
    return value


def _data(value: object) -> bytes:
    if not isinstance(value, dict):
        raise _not_an_object(value)
    try:
        refuse_what_json_cannot_hold(value)
        encoded = msgspec.json.encode(value)
    except InvalidMessage as error:
        raise InvalidEvent(f"data: {error.message}", field="data") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"data: cannot be written as JSON: {error}", field="data") from None
    _refuse_nul(encoded)
    return encoded


def _not_an_object(value: object) -> InvalidEvent:
    kind = "null" if value is None else type(value).__name__
    return InvalidEvent(f"data: {kind} is not a JSON object", field="data")


def _refuse_nul(encoded: bytes) -> None:
    """Refuse the character NUL, which SQS and terminals do not accept."""
    if NUL in encoded and place_of_nul(msgspec.json.decode(encoded), "data"):
        raise InvalidEvent("data: holds the character NUL", field="data")


class _Wire(msgspec.Struct):
    """A record that anybody may have put on the stream."""

    agentId: Any = msgspec.UNSET
    timestamp: Any = None
    eventType: Any = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    eventId: Any = None
    traceparent: Any = None


def read(record: StreamRecord, stream: str) -> StreamEvent | Rejected:
    """Return the event that the record holds, or why it is not one."""
    try:
        return _event(record, stream)
    except (PostroadError, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, PostroadError) else str(error)
        data = base64.b64encode(record.data).decode()
        return Rejected(reason, record.shard, record.sequence, record.key, data)


def _event(record: StreamRecord, stream: str) -> StreamEvent:
    data = checked_bytes(record.data, len(record.data))
    _check_size(len(data))
    wire = msgspec.json.decode(data, type=_Wire)
    model.check_agent_id(_present(wire.agentId, "agentId"), field="agentId")
    if wire.agentId != record.key:
        raise PostroadError(f"agentId: {wire.agentId!r} is not the partition key {record.key!r}")
    event_id = event_id_of(stream, record.shard, record.sequence) if wire.eventId is None else wire.eventId
    if wire.timestamp is not None and not isinstance(wire.timestamp, str):
        raise PostroadError(f"timestamp: {type(wire.timestamp).__name__} is not text")
    return StreamEvent(
        producer_id=record.key,
        event_id=_printable(event_id, "eventId", _MAX_EVENT_ID),
        event_type=_printable(_present(wire.eventType, "eventType"), "eventType", model.MAX_EVENT_TYPE),
        # A record without a time happened when it arrived.
        occurred_ms=model.milliseconds(
            model.now_text(record.arrived_at) if wire.timestamp is None else model.normal_time(wire.timestamp)
        ),
        data=_object(wire.data),
        shard=record.shard,
        sequence=record.sequence,
        arrived_at=record.arrived_at,
        traceparent=valid_traceparent(wire.traceparent),
    )


def event_id_of(stream: str, shard: str, sequence: str) -> str:
    """Return the id of an event that came without one; it is the same after every retry."""
    return str(uuid.uuid5(_NAMESPACE, f"{stream}/{shard}/{sequence}"))


def _object(raw: msgspec.Raw | msgspec.UnsetType) -> bytes:
    encoded = bytes(_present(raw, "data"))
    # Raw JSON was only skipped over: broken text in it shows when it is read.
    if not isinstance(found := msgspec.json.decode(encoded), dict):
        raise _not_an_object(found)
    _refuse_nul(encoded)
    return encoded


def _present(value: Any, field: str) -> Any:
    if value is msgspec.UNSET:
        raise PostroadError(f"{field}: is missing")
    return value


def refused(event: Any, reason: str, *, shard: str = "") -> Rejected:
    """Return an event (or a row made of one) that a store or queue will never accept, as it was on the stream."""
    wire = WireEvent(
        agentId=event.producer_id,
        timestamp=model.time_text(event.occurred_ms),
        eventType=event.event_type,
        data=msgspec.Raw(event.data),
        eventId=event.event_id,
        traceparent=event.traceparent,
    )
    data = base64.b64encode(msgspec.json.encode(wire)).decode()
    return Rejected(reason, shard, event.sequence, event.producer_id, data)


def merged(rows: Iterable[T]) -> list[T]:
    """Return the rows, which come in each producer's sequence, merged by time (`producer_id`, `occurred_ms`).

    A producer whose clock steps back keeps its sequence: a row counts as no older than the ones before it.
    """
    newest: dict[str, int] = {}
    keyed: list[tuple[int, str, int, T]] = []
    row: Any
    for place, row in enumerate(rows):
        time = newest[row.producer_id] = max(newest.get(row.producer_id, 0), row.occurred_ms)
        keyed.append((time, row.producer_id, place, row))
    keyed.sort(key=lambda entry: entry[:3])
    return [row for *_, row in keyed]
