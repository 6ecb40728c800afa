"""Records of the stream, read as events or refused for good."""

from __future__ import annotations

import base64
import uuid
from typing import Any, Final

import msgspec

from postroad.agents import rules
from postroad.agents.outgoing import Row
from postroad.agents.port import Rejected, StreamEvent
from postroad.errors import PostroadError
from postroad.events import checked_bytes
from postroad.streams import StreamRecord
from postroad.telemetry import valid_traceparent

_NAMESPACE: Final = uuid.UUID("6f0a7f1e-9d0b-5c53-8d7b-0d7a3c1f5e21")
_MISSING: Final = "is missing"


class Unreadable(msgspec.Struct, frozen=True):
    """A record whose data could not even be decoded; `data` is what came."""

    shard: str
    sequence: str
    key: str
    data: str
    reason: str


class _Wire(msgspec.Struct):
    agentId: Any = msgspec.UNSET
    timestamp: Any = msgspec.UNSET
    eventType: Any = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    eventId: Any = None
    traceparent: Any = None


def read(record: StreamRecord | Unreadable, stream: str) -> StreamEvent | Rejected:
    """The event that the record holds, or why it never will be one."""
    if isinstance(record, Unreadable):
        return Rejected(record.reason, record.shard, record.sequence, record.key, record.data)
    try:
        return _event(record, stream)
    except (PostroadError, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, PostroadError) else str(error)
        data = base64.b64encode(record.data).decode()
        return Rejected(reason, record.shard, record.sequence, record.key, data)


def refused(event: StreamEvent | Row, reason: str) -> Rejected:
    """An event that was read and that a store or queue will never take, as it lay on the stream."""
    wire = rules.WireEvent(
        agentId=event.producer_id,
        timestamp=rules.time_text(event.occurred_ms),
        eventType=event.event_type,
        data=msgspec.Raw(event.data),
        eventId=event.event_id,
        traceparent=event.traceparent,
    )
    shard = event.shard if isinstance(event, StreamEvent) else ""
    data = base64.b64encode(msgspec.json.encode(wire)).decode()
    return Rejected(reason, shard, event.sequence, event.producer_id, data)


def event_id_of(stream: str, shard: str, sequence: str) -> str:
    """The id of an event that came without one, the same after every retry."""
    return str(uuid.uuid5(_NAMESPACE, f"{stream}/{shard}/{sequence}"))


def _event(record: StreamRecord, stream: str) -> StreamEvent:
    data = checked_bytes(record.data, len(record.data))
    rules.check_size(len(data))
    wire = msgspec.json.decode(data, type=_Wire)
    rules.check_agent_id(_present(wire.agentId, "agentId"), field="agentId")
    if wire.agentId != record.key:
        raise PostroadError(f"agentId: {wire.agentId!r} is not the partition key {record.key!r}")
    event_id = event_id_of(stream, record.shard, record.sequence) if wire.eventId is None else wire.eventId
    return StreamEvent(
        producer_id=record.key,
        event_id=rules.check_printable(event_id, "eventId", rules.MAX_EVENT_ID),
        event_type=rules.check_printable(_present(wire.eventType, "eventType"), "eventType", rules.MAX_EVENT_TYPE),
        occurred_ms=_occurred(wire, record),
        data=_object(wire.data),
        shard=record.shard,
        sequence=record.sequence,
        arrived_at=record.arrived_at,
        traceparent=valid_traceparent(wire.traceparent),
    )


def _occurred(wire: _Wire, record: StreamRecord) -> int:
    """The event's time; a record without one happened when it arrived."""
    if wire.timestamp is msgspec.UNSET or wire.timestamp is None:
        return rules.milliseconds(rules.now_text(record.arrived_at))
    if not isinstance(wire.timestamp, str):
        raise PostroadError(f"timestamp: {type(wire.timestamp).__name__} is not text")
    return rules.milliseconds(rules.normal_time(wire.timestamp))


def _object(raw: msgspec.Raw | msgspec.UnsetType) -> bytes:
    encoded = bytes(_present(raw, "data"))
    # Raw JSON was only skipped over: broken text in it shows when it is read.
    if not isinstance(found := msgspec.json.decode(encoded), dict):
        raise rules.no_object(found)
    rules.refuse_nul(encoded)
    return encoded


def _present(value: Any, field: str) -> Any:
    if value is msgspec.UNSET:
        raise PostroadError(f"{field}: {_MISSING}")
    return value
