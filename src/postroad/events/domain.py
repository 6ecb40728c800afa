"""The event of the outbox: what happened, to which key, as JSON that is stored and sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import InvalidMessage
from postroad.events.envelope import MAX_DEPTH, Envelope, envelope_of, is_strict, refusal, sendable, unsendable, uuid7

OUTBOX = "outbox"
"""The publisher of an event whose message does not name one."""
TASK_ROW = "postroad.task"
"""The type of an outbox row that holds a task: it is submitted, not published."""
_FIRST_KEY = "transferId"
_encode = msgspec.json.Encoder().encode


class _Heading(msgspec.Struct, rename="camel", kw_only=True):
    v: int = 1
    event_id: UUID
    occurred_at: Annotated[datetime, msgspec.Meta(tz=True)] = msgspec.field(default_factory=SYSTEM_CLOCK.now)
    tenant_id: str | msgspec.UnsetType | None = msgspec.UNSET
    traceparent: str | msgspec.UnsetType | None = msgspec.UNSET
    type: Annotated[str, msgspec.Meta(min_length=1)]


class _Wire(msgspec.Struct):
    envelope: _Heading
    key: dict[str, str] = {}
    payload: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_Wire).decode


@dataclass(frozen=True)
class DomainEvent:
    """Something that happened in a service, for others to act on. `Outbox.add` checks it; making one does not.

    Attributes:
        type: The name of the event, such as `orders.placed`.
        key: What it happened to, by name. Events of one key stay in order; `transferId` alone decides if it is there.
        payload: The facts, as JSON values.
        tenant_id: The tenant that it belongs to.
        traceparent: The W3C trace that it is part of.
        event_id: A new UUIDv7; a consumer's inbox recognises a repeat by it.
        occurred_at: Now, in UTC.
        v: The version of the payload.

    Example:
        outbox.add(connection, DomainEvent("orders.placed", key={"orderId": "A-1"}, payload={"amount": 25}))
    """

    type: str
    key: Mapping[str, str]
    payload: Mapping[str, Any]
    tenant_id: str | None = None
    traceparent: str | None = None
    event_id: UUID = field(default_factory=uuid7)
    occurred_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    v: int = 1

    def to_json(self) -> bytes:
        """Return the event as compact JSON of three keys: envelope, key, payload; absent fields are left out."""
        return domain_json(self, self.payload)

    @classmethod
    def from_json(cls, body: bytes | str) -> DomainEvent:
        """Return the event that the JSON `body` holds; InvalidMessage names a field that is missing or unreadable."""
        if not isinstance(body, bytes | str):
            raise InvalidMessage(f"the body is {type(body).__name__}, not bytes or text")
        try:
            wire = _decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise refusal(error, size=len(body)) from error
        if not is_strict(wire.payload.values(), MAX_DEPTH - 1):
            raise unsendable(wire.payload, path="payload", levels=MAX_DEPTH)
        heading = wire.envelope
        return cls(
            type=heading.type,
            key=wire.key,
            payload=wire.payload,
            tenant_id=heading.tenant_id or None,
            traceparent=heading.traceparent or None,
            event_id=heading.event_id,
            occurred_at=_in_utc(heading.occurred_at, "envelope.occurredAt"),
            v=heading.v,
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope) -> DomainEvent:
        """Return the event that `envelope` holds, whichever JSON form carried it."""
        key = dict(envelope.keys) or ({} if envelope.key is None else {"key": envelope.key})
        return cls(
            type=envelope.event_type,
            key=key,
            payload=envelope.payload,
            tenant_id=envelope.tenant_id,
            traceparent=envelope.traceparent,
            event_id=envelope.event_id,
            occurred_at=_in_utc(envelope.created_at, "created_at"),
            v=envelope.version,
        )

    def to_envelope(self) -> Envelope:
        """Return the envelope of the event, published by the outbox."""
        fields: dict[str, Any] = {
            "event_type": self.type,
            "event_id": self.event_id,
            "created_at": self.occurred_at,
            "publisher_id": OUTBOX,
            "payload": self.payload,
        }
        if self.v != 1:
            fields["version"] = self.v
        further = {"tenant_id": self.tenant_id, "key": ordering_key(self.key), "traceparent": self.traceparent}
        return envelope_of(fields | {name: value for name, value in {**further, "keys": self.key}.items() if value})


def ordering_key(key: Mapping[str, str]) -> str:
    """Return the text that orders events of this key: its transferId, else its values in name order, joined by '/'."""
    if (transfer := key.get(_FIRST_KEY)) is not None:
        return transfer
    return "/".join(key[name] for name in sorted(key))


def as_key(key: Mapping[str, str] | str) -> Mapping[str, str]:
    """Return the key as a mapping; text alone stands for a key of one value."""
    return {"key": key} if isinstance(key, str) else key


def domain_json(event: DomainEvent, payload: Mapping[str, Any]) -> bytes:
    """Return the event's JSON with this payload instead of its own; InvalidMessage if strict JSON cannot hold it."""
    held = payload if type(payload) is dict else dict(payload)
    key = event.key if type(event.key) is dict else dict(event.key)
    moment = event.occurred_at
    heading = _Heading(
        v=event.v,
        event_id=event.event_id,
        occurred_at=moment if moment.tzinfo is UTC else _in_utc(moment, "occurred_at"),
        tenant_id=msgspec.UNSET if event.tenant_id is None else event.tenant_id,
        traceparent=msgspec.UNSET if event.traceparent is None else event.traceparent,
        type=event.type,
    )
    try:
        body = sendable(_encode({"envelope": heading, "key": key, "payload": held}))
    except Exception as error:
        raise unsendable(held, path="payload", levels=MAX_DEPTH, why=error) from error
    # A quick check that most events pass: NaN would have become null, and few brackets cannot nest deep.
    surely_strict = b"null" not in body and body.count(b"{") + body.count(b"[") <= MAX_DEPTH
    if not surely_strict and not is_strict(held.values(), MAX_DEPTH - 1):
        raise unsendable(held, path="payload", levels=MAX_DEPTH)
    return body


def _in_utc(moment: datetime, field: str) -> datetime:
    """Return the time in UTC; near the ends of the calendar a time of another zone may have none."""
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidMessage(f"{field}: {moment.isoformat()} is outside the calendar in UTC", field=field) from error
