"""The codec wraps events in envelopes, and envelopes in bytes, and loses nothing on the way back."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from postroad.clock import SystemClock
from postroad.errors import InvalidMessage, MessageTooLarge, UnknownEventType
from postroad.events import Codec, Envelope, EventRegistry, codec, event

NOON = datetime(2025, 1, 15, 12, tzinfo=UTC)
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
SEED = {
    "event_type": "weakincentives.runtime.events:ToolInvoked",
    "event_id": "550e8400-e29b-41d4-a716-446655440000",
    "created_at": "2025-01-15T10:30:00.000000+00:00",
    "publisher_id": "process-abc-123",
    "payload": {"name": "search_files", "params": {"pattern": "*.py"}, "result": {"files": ["main.py"]}},
}


@event
class OrderPlaced:
    order_id: str
    amount: Decimal


@event
class Known:
    event_id: UUID | str | None = None
    session_id: UUID | str | int | None = None


@dataclass
class Unregistered:
    x: int


class StoppedClock(SystemClock):
    def now(self) -> datetime:
        return NOON


def wrap(wrapped: object = OrderPlaced("A-1", Decimal("9.50")), **given: Any) -> Envelope:
    return codec.wrap(wrapped, **{"publisher_id": "shop", **given})


def test_an_envelope_carries_the_type_the_payload_and_the_publisher() -> None:
    exact = Codec(clock=StoppedClock(), new_id=lambda: ID)

    wrapped = exact.wrap(OrderPlaced("A-1", Decimal("9.50")), publisher_id="shop")

    assert wrapped == Envelope(
        event_type=f"{__name__}:OrderPlaced",
        event_id=ID,
        created_at=NOON,
        publisher_id="shop",
        payload={"order_id": "A-1", "amount": "9.50"},
    )


def test_the_json_has_five_keys_and_no_more_when_there_is_no_more_to_say() -> None:
    assert list(json.loads(codec.encode(wrap()))) == ["event_type", "event_id", "created_at", "publisher_id", "payload"]


def test_what_routing_and_tracing_need_travels_along() -> None:
    more = {name: f"the {name}" for name in ("tenant_id", "key", "traceparent", "correlation_id", "causation_id")}

    wrapped = wrap(session_id="s-1", **more)
    arrived = codec.decode(codec.encode(wrapped))

    assert arrived == wrapped
    assert {name: getattr(arrived, name) for name in more} == more
    assert arrived.session_id == "s-1"


def test_a_message_with_only_the_five_keys_decodes() -> None:
    arrived = codec.decode(json.dumps(SEED))

    assert arrived.event_id == UUID("550e8400-e29b-41d4-a716-446655440000")
    assert arrived.created_at == datetime(2025, 1, 15, 10, 30, tzinfo=UTC)
    assert (arrived.version, arrived.session_id, arrived.key) == (1, None, None)
    assert arrived.payload == SEED["payload"]


def test_optional_keys_may_be_null_and_unknown_ones_are_ignored() -> None:
    more = {"version": 1, "key": None, "tenant_id": None, "colour": {"deep": [1]}}

    arrived = codec.decode(json.dumps({**SEED, **more}))

    assert arrived == codec.decode(json.dumps(SEED))
    assert codec.encode(arrived) == codec.encode(codec.decode(json.dumps(SEED)))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: bytes(data).decode()])
def test_a_message_may_come_as_bytes_or_text(kind: Any) -> None:
    message = codec.encode(wrap())

    assert codec.decode(kind(message)) == codec.decode(message)


def test_an_envelope_made_by_hand_equals_the_one_that_arrives() -> None:
    by_hand = Envelope("t", ID, NOON, "p", {"x": [1, {"y": None}]}, version=2, key="k")

    arrived = codec.decode(codec.encode(by_hand))

    assert arrived == by_hand
    assert repr(arrived) == repr(by_hand)
    assert dataclasses.asdict(arrived) == dataclasses.asdict(by_hand)


def test_an_envelope_can_be_copied_replaced_and_pickled_and_is_frozen() -> None:
    wrapped = wrap(key="k")

    assert copy.deepcopy(wrapped) == pickle.loads(pickle.dumps(wrapped)) == wrapped
    assert dataclasses.replace(wrapped, key="other").key == "other"
    assert dataclasses.replace(wrapped, key=None) == dataclasses.replace(
        wrap(), event_id=wrapped.event_id, created_at=wrapped.created_at
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        wrapped.key = "other"  # type: ignore[misc]  # what the type checker refuses is refused at run time too


@pytest.mark.parametrize("own", [ID, str(ID), str(ID).upper()])
def test_the_id_of_the_event_is_the_id_of_the_envelope(own: UUID | str) -> None:
    assert wrap(Known(event_id=own)).event_id == ID


def test_an_id_that_is_given_wins_and_without_any_each_wrap_makes_a_new_one() -> None:
    other = UUID(int=5)

    assert wrap(Known(event_id=ID), event_id=other).event_id == wrap(event_id=str(other)).event_id == other
    assert wrap().event_id.version == 7
    assert wrap(Known()).event_id < wrap(Known()).event_id


@pytest.mark.parametrize("odd", ["abc", "", 5, b"x"])
def test_an_id_that_is_no_uuid_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        wrap(Known(event_id=odd))

    assert caught.value.field == "event_id"


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        (None, None, None),
        ("mine", None, "mine"),
        (ID, None, str(ID)),
        (5, None, None),
        ("mine", "given", "given"),
        (None, ID, str(ID)),
    ],
)
def test_the_session_is_the_given_one_or_the_events_own(own: Any, given: Any, expected: str | None) -> None:
    assert wrap(Known(session_id=own), session_id=given).session_id == expected


def test_the_time_of_wrapping_is_aware_and_in_utc() -> None:
    there = timezone(timedelta(hours=5))

    assert wrap().created_at.tzinfo is UTC
    assert wrap(created_at=datetime(2025, 1, 15, 17, tzinfo=there)).created_at == NOON
    assert wrap(created_at=datetime(2025, 1, 15, 17, tzinfo=there)).created_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("publisher_id", None),
        ("publisher_id", 5),
        ("session_id", 5),
        ("tenant_id", 5),
        ("key", b"k"),
        ("traceparent", []),
        ("correlation_id", ID),
        ("causation_id", ID),
        ("created_at", datetime(2025, 1, 1)),
        ("created_at", "now"),
        ("event_id", "x"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        wrap(**{field: value})

    assert caught.value.field == field


@pytest.mark.parametrize(
    "odd", [None, 5, "x", {"a": 1}, object(), len, ValueError("x")], ids=lambda odd: type(odd).__name__
)
def test_what_is_not_an_event_is_refused_by_its_type(odd: Any) -> None:
    with pytest.raises(InvalidMessage, match=f"^{type(odd).__qualname__} is not an event"):
        wrap(odd)


def test_a_class_is_not_an_event_but_its_instances_are() -> None:
    with pytest.raises(InvalidMessage, match=r"^the class OrderPlaced itself is not an event"):
        wrap(OrderPlaced)


def test_a_dataclass_that_is_not_registered_is_unknown() -> None:
    with pytest.raises(UnknownEventType, match="Unregistered is not registered"):
        wrap(Unregistered(1))


def test_an_exception_is_registered_for_fields_and_cannot_be_the_event_itself() -> None:
    registry = EventRegistry()
    name = registry.register(ValueError)
    here = Codec(registry)

    with pytest.raises(InvalidMessage, match="not a dataclass"):
        here.wrap(ValueError("x"), publisher_id="p")
    with pytest.raises(InvalidMessage, match="not a dataclass"):
        here.unwrap(Envelope(name, ID, NOON, "p", {}))


def test_an_unknown_type_is_unknown_when_unwrapped_and_only_then() -> None:
    arrived = codec.decode(json.dumps({**SEED, "event_type": "os:system"}))

    with pytest.raises(UnknownEventType, match="os:system"):
        codec.unwrap(arrived)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_type", 5),
        ("event_id", "not a uuid"),
        ("created_at", "2025-01-15T10:30:00"),
        ("created_at", "yesterday"),
        ("created_at", 5),
        ("publisher_id", None),
        ("payload", []),
        ("payload", None),
        ("payload", "{}"),
        ("version", 0),
        ("version", -1),
        ("version", 1.5),
        ("version", True),
        ("version", "1"),
        ("key", 5),
        ("session_id", {}),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        codec.decode(json.dumps({**SEED, field: value}))

    assert caught.value.field == field


@pytest.mark.parametrize("field", SEED)
def test_a_missing_field_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(InvalidMessage, match="missing required field") as caught:
        codec.decode(json.dumps({name: value for name, value in SEED.items() if name != field}))

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_type", None),
        ("event_id", 5),
        ("created_at", datetime(2025, 1, 1)),
        ("payload", [1]),
        ("version", 0),
        ("key", 5),
    ],
)
def test_an_envelope_made_by_hand_is_checked_when_it_is_made(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        dataclasses.replace(wrap(), **{field: value})

    assert caught.value.field == field


def test_only_envelopes_are_encoded() -> None:
    odd: Any = {"event_type": "x"}

    with pytest.raises(InvalidMessage, match="dict is not an Envelope"):
        codec.encode(odd)


def test_the_size_limit_is_checked_before_parsing_and_after_writing() -> None:
    small = Codec(max_bytes=300)
    fits, large = wrap(OrderPlaced("x", Decimal(1))), wrap(OrderPlaced("x" * 300, Decimal(1)))

    assert small.decode(small.encode(fits)) == fits
    with pytest.raises(MessageTooLarge, match="above the limit of 300"):
        small.encode(large)
    with pytest.raises(MessageTooLarge, match="has 301 bytes"):
        small.decode(b"[" * 301)


def test_the_size_limit_is_generous_by_default() -> None:
    assert codec.max_bytes == 104_857_600
