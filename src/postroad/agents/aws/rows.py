"""Rows of the table SubscriberEvents: written from events, read by the publisher."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from postroad.agents.aws.values import number, payload, payload_json, text
from postroad.agents.outgoing import Held, Marker, Row
from postroad.agents.port import StreamEvent
from postroad.agents.rules import milliseconds, time_text

SEQUENCE_DIGITS: Final = 56
MARKER: Final = "~"
UNREADABLE: Final = (KeyError, ValueError, TypeError, AttributeError)
"""What `row_of` raises for an item that is no row."""
Item = dict[str, Any]


def sort_key(occurred_ms: int, producer_id: str, sequence: str) -> str:
    """What finds and sorts a row: two events of one millisecond differ."""
    return f"{time_text(occurred_ms)}#{producer_id}#{sequence:0>{SEQUENCE_DIGITS}}"


def item_of(event: StreamEvent, subscriber_id: str, retention: float) -> Item:
    """The row of an event for one subscriber, computed from the event alone: the same again is equal."""
    arrived_ms = int(event.arrived_at.timestamp() * 1_000)
    item = {
        "subscriberId": text(subscriber_id),
        "timestamp": text(sort_key(event.occurred_ms, event.producer_id, event.sequence)),
        "occurredAt": text(time_text(event.occurred_ms)),
        "producerId": text(event.producer_id),
        "eventId": text(event.event_id),
        "eventType": text(event.event_type),
        "data": payload(event.data),
        "sequenceNumber": text(event.sequence),
        "arrivedAt": text(time_text(arrived_ms)),
        "expiresAt": number(int(arrived_ms / 1_000 + retention)),
    }
    return item if event.traceparent is None else {**item, "traceparent": text(event.traceparent)}


def row_of(item: Mapping[str, Any]) -> Row | Marker:
    """A row or marker as the table has it; `KeyError` and `ValueError` for what is neither."""
    if item["timestamp"]["S"].startswith(MARKER):
        return Marker(
            subscriber_id=item["subscriberId"]["S"],
            key=item["timestamp"]["S"],
            producer_id=item["producerId"]["S"],
            held=held_of(item),
        )
    return Row(
        subscriber_id=item["subscriberId"]["S"],
        key=item["timestamp"]["S"],
        producer_id=item["producerId"]["S"],
        event_id=item["eventId"]["S"],
        event_type=item["eventType"]["S"],
        occurred_ms=milliseconds(item["occurredAt"]["S"]),
        data=payload_json(item["data"]),
        sequence=_sequence(item["sequenceNumber"]["S"]),
        arrived_ms=milliseconds(item["arrivedAt"]["S"]),
        traceparent=item["traceparent"]["S"] if "traceparent" in item else None,
    )


def _sequence(told: str) -> str:
    """The sequence as the stream told it, which is a number."""
    int(told)
    return told


def held_of(item: Mapping[str, Any]) -> Held | None:
    """From where on a pair is held, as its item or a marker says."""
    if "heldFrom" not in item:
        return None
    told = item["heldFrom"]["M"]
    return Held(told["sequenceNumber"]["S"], told["timestamp"]["S"], int(told["notes"]["N"]))


def discarded_of(item: Mapping[str, Any]) -> dict[str, int]:
    """Up to which sequence an agent wants nothing of a producer any more."""
    told = item.get("discarded", {}).get("M", {})
    return {producer_id: int(entry["M"]["until"]["S"]) for producer_id, entry in told.items()}


def marker_item(subscriber_id: str, producer_id: str, now: datetime, marker: str, **more: Any) -> Item:
    """A marker in the subscriber's own partition, so that the publisher meets it in sequence with the events."""
    stamp = time_text(int(now.astimezone(UTC).timestamp() * 1_000))
    return {
        "subscriberId": text(subscriber_id),
        "timestamp": text(f"{MARKER}{stamp}#{producer_id}#{marker}"),
        "producerId": text(producer_id),
        "expiresAt": number(int(now.timestamp()) + 86_400),
        **more,
    }
