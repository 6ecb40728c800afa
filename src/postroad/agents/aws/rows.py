"""Rows of the table SubscriberEvents, and JSON as a map of DynamoDB and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from typing import Any, Final

import msgspec

from postroad.agents.outgoing import Held, Marker, Row
from postroad.agents.port import StreamEvent
from postroad.agents.rules import milliseconds, time_text

_MOST_DIGITS: Final = 38
_MOST_LEVELS: Final = 30
"""DynamoDB takes 32, and does not say whether the item and the innermost value count."""
_MOST_KEY_BYTES: Final = 65_535


def text(value: str) -> dict[str, str]:
    """A text."""
    return {"S": value}


def number(value: float) -> dict[str, str]:
    """A number."""
    return {"N": str(value)}


def payload(data: bytes) -> dict[str, Any]:
    """A JSON object as a map; one that would be refused, or come back as another one, stays as text."""
    try:
        return _value(json.loads(data, parse_float=Decimal, object_pairs_hook=_object), _MOST_LEVELS)
    except (ValueError, DecimalException):
        return {"S": data.decode()}


def payload_json(value: Mapping[str, Any]) -> bytes:
    """The JSON that was kept."""
    return value["S"].encode() if "S" in value else msgspec.json.encode(_plain(value))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object, each of which a map can hold under its name."""
    members = dict(pairs)
    if len(members) < len(pairs) or any(not 0 < len(name.encode()) <= _MOST_KEY_BYTES for name in members):
        raise ValueError("names that a map of DynamoDB cannot have")
    return members


def _value(value: Any, levels: int) -> dict[str, Any]:
    if isinstance(value, dict | list) and levels == 0:
        raise ValueError("nested deeper than DynamoDB takes")
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, dict):
        return {"M": {key: _value(child, levels - 1) for key, child in value.items()}}
    if isinstance(value, list):
        return {"L": [_value(child, levels - 1) for child in value]}
    return {"N": _digits(value)}


def _digits(value: int | Decimal) -> str:
    """The number as DynamoDB takes it: up to 38 digits, 1E-130 to 1E+126.

    It gives back 1.0 as 1, so a fraction of zero cannot be kept as a number.
    """
    if isinstance(value, Decimal) and value == value.to_integral_value():
        raise ValueError("a number that comes back without its fraction")
    told = Decimal(value)
    digits = "".join(map(str, told.as_tuple().digits)).strip("0")
    if len(digits) > _MOST_DIGITS or (digits and not -130 <= told.adjusted() <= 125):
        raise ValueError("a number that DynamoDB cannot keep")
    return str(value)


def _plain(value: Mapping[str, Any]) -> Any:
    [(kind, held)] = value.items()
    if kind == "M":
        return {key: _plain(child) for key, child in held.items()}
    if kind == "L":
        return [_plain(child) for child in held]
    if kind == "N":
        return msgspec.Raw(held.encode())
    return None if kind == "NULL" else held


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
