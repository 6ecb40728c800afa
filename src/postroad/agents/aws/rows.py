"""Rows and markers of the table SubscriberEvents, pairs and recipients, and their form as items of DynamoDB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from typing import Any, Final

import msgspec

from postroad.agents.model import Order, PairState, milliseconds, time_text
from postroad.agents.stream import StreamEvent

_MOST_LEVELS: Final = 30
"""DynamoDB accepts 32, and does not say whether the item and the innermost value count."""
MARKER: Final = "~"
UNREADABLE: Final = (KeyError, ValueError, TypeError, AttributeError)
"""What `row_of` raises for an item that is not a row."""
Item = dict[str, Any]


class Row(msgspec.Struct, frozen=True):
    """One event for one subscriber as it is stored; `key` finds it and sorts it by time."""

    subscriber_id: str
    key: str
    producer_id: str
    event_id: str
    event_type: str
    occurred_ms: int
    data: bytes
    sequence: str
    arrived_ms: int
    traceparent: str | None = None
    replay_id: str | None = None


class Held(msgspec.Struct, frozen=True):
    """The first row of a pair that was not sent; `notes` counts the changes of this mark."""

    sequence: str
    key: str
    notes: int = 1


class Replay(msgspec.Struct, frozen=True):
    """A request for rows since a time, up to the newest one that existed when it was made."""

    replay_id: str
    since_ms: int
    until: str


class Pair(msgspec.Struct, frozen=True):
    """A subscription as the publisher needs it."""

    state: PairState
    held: Held | None = None
    replay: Replay | None = None


class Marker(msgspec.Struct, frozen=True):
    """A row that makes the publisher look at a pair again; `held` is what an ended subscription left behind."""

    subscriber_id: str
    key: str
    producer_id: str
    held: Held | None = None


class Recipient(msgspec.Struct, frozen=True):
    """An agent as the publisher needs it; `newest_ms` is the latest timestamp that was sent to it."""

    agent_id: str
    queue_url: str
    order: Order
    newest_ms: int = -1
    discarded: Mapping[str, int] = {}
    """By producer, the sequence up to which its events were discarded."""

    def wants(self, row: Row | Marker) -> bool:
        """Return whether the row was not discarded."""
        return isinstance(row, Marker) or int(row.sequence) > self.discarded.get(row.producer_id, -1)


def text(value: str) -> dict[str, str]:
    return {"S": value}


def number(value: float) -> dict[str, str]:
    return {"N": str(value)}


def payload(data: bytes) -> dict[str, Any]:
    """Return a JSON object as a map; one that a map would change or refuse stays text."""
    try:
        return _value(json.loads(data, parse_float=Decimal, object_pairs_hook=_object), _MOST_LEVELS)
    except (ValueError, DecimalException):
        return {"S": data.decode()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object, or raise `ValueError` for names that a map cannot have."""
    members = dict(pairs)
    if len(members) < len(pairs) or any(not 0 < len(name.encode()) <= 65_535 for name in members):
        raise ValueError("names that a map of DynamoDB cannot have")
    return members


def _value(value: Any, levels: int) -> dict[str, Any]:
    if isinstance(value, dict | list) and levels == 0:
        raise ValueError("nested deeper than DynamoDB allows")
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
    """Return the number as DynamoDB accepts it: up to 38 digits, 1E-130 to 1E+126.

    DynamoDB returns 1.0 as 1, so a fraction of zero cannot be stored as a number.
    """
    if isinstance(value, Decimal) and value == value.to_integral_value():
        raise ValueError("a number that comes back without its fraction")
    decimal = Decimal(value)
    digits = "".join(map(str, decimal.as_tuple().digits)).strip("0")
    if len(digits) > 38 or (digits and not -130 <= decimal.adjusted() <= 125):
        raise ValueError("a number that DynamoDB cannot store")
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


def sort_key(occurred_ms: int, producer_id: str, sequence: str) -> str:
    """Return the key that finds and sorts a row: two events of one millisecond differ."""
    return f"{time_text(occurred_ms)}#{producer_id}#{sequence:0>56}"


def item_of(event: StreamEvent, subscriber_id: str, retention: float) -> Item:
    """Return the row of an event for one subscriber, made of the event alone: a repeat is equal."""
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
    """Return an item as a row or marker; raise one of `UNREADABLE` if it is neither."""
    if item["timestamp"]["S"].startswith(MARKER):
        return Marker(item["subscriberId"]["S"], item["timestamp"]["S"], item["producerId"]["S"], held=held_of(item))
    data, sequence = item["data"], item["sequenceNumber"]["S"]
    int(sequence)  # A sequence is a number; `ValueError` for anything else.
    return Row(
        subscriber_id=item["subscriberId"]["S"],
        key=item["timestamp"]["S"],
        producer_id=item["producerId"]["S"],
        event_id=item["eventId"]["S"],
        event_type=item["eventType"]["S"],
        occurred_ms=milliseconds(item["occurredAt"]["S"]),
        data=data["S"].encode() if "S" in data else msgspec.json.encode(_plain(data)),
        sequence=sequence,
        arrived_ms=milliseconds(item["arrivedAt"]["S"]),
        traceparent=item["traceparent"]["S"] if "traceparent" in item else None,
    )


def held_of(item: Mapping[str, Any]) -> Held | None:
    """Return the first row that is held, as the item of a pair or a marker says."""
    if "heldFrom" not in item:
        return None
    held = item["heldFrom"]["M"]
    return Held(held["sequenceNumber"]["S"], held["timestamp"]["S"], int(held["notes"]["N"]))


def event_types_of(item: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the event types of a subscription; None for all."""
    return tuple(each["S"] for each in item["eventTypes"]["L"]) if "eventTypes" in item else None


def discarded_of(item: Mapping[str, Any]) -> dict[str, int]:
    """Return, by producer, the sequence up to which the agent's events were discarded."""
    entries = item.get("discarded", {}).get("M", {})
    return {producer_id: int(entry["M"]["until"]["S"]) for producer_id, entry in entries.items()}


def marker_item(subscriber_id: str, producer_id: str, now: datetime, marker: str, **more: Any) -> Item:
    """Return a marker in the subscriber's own partition, so that the publisher meets it in sequence with the events."""
    stamp = time_text(int(now.astimezone(UTC).timestamp() * 1_000))
    return {
        "subscriberId": text(subscriber_id),
        "timestamp": text(f"{MARKER}{stamp}#{producer_id}#{marker}"),
        "producerId": text(producer_id),
        "expiresAt": number(int(now.timestamp()) + 86_400),
        **more,
    }
