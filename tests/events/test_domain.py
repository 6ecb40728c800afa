"""The event of the outbox and its JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from postroad.errors import InvalidMessage
from postroad.events import DomainEvent

EVENT_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
OCCURRED = datetime(2025, 8, 26, 10, 15, 1, tzinfo=UTC)
HEADING = {"v": 1, "eventId": str(EVENT_ID), "occurredAt": "2025-08-26T10:15:01Z", "type": "t"}


def body(**changes: Any) -> bytes:
    """An event's JSON whose envelope is changed; None leaves a field out."""
    heading = {name: value for name, value in (HEADING | changes).items() if value is not None}
    return json.dumps({"envelope": heading, "key": {"k": "1"}, "payload": {}}).encode()


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_the_json_has_three_keys_in_order_and_leaves_out_what_is_absent() -> None:
    event = DomainEvent("t", {"k": "1"}, {"é": 1.5}, event_id=EVENT_ID, occurred_at=OCCURRED)

    assert event.to_json().decode() == (
        f'{{"envelope":{{"v":1,"eventId":"{EVENT_ID}","occurredAt":"2025-08-26T10:15:01Z","type":"t"}},'
        '"key":{"k":"1"},"payload":{"é":1.5}}'
    )


def test_what_is_present_has_its_place_in_the_envelope() -> None:
    event = DomainEvent("t", {"k": "1"}, {}, tenant_id="acme", traceparent="00-1", v=2)

    assert list(json.loads(event.to_json())["envelope"]) == [
        *("v", "eventId", "occurredAt", "tenantId", "traceparent", "type")
    ]


def test_a_moment_in_another_zone_is_written_in_utc() -> None:
    moment = datetime(2025, 8, 26, 12, 15, 1, 500, tzinfo=timezone(timedelta(hours=2)))

    written = json.loads(DomainEvent("t", {"k": "1"}, {}, occurred_at=moment).to_json())

    assert written["envelope"]["occurredAt"] == "2025-08-26T10:15:01.000500Z"


def test_an_event_comes_back_from_its_json() -> None:
    event = DomainEvent("t", {"k": "1"}, {"n": [1, None, "x"]}, tenant_id="acme", traceparent="00-1", v=3)

    assert DomainEvent.from_json(event.to_json()) == event
    assert DomainEvent.from_json(event.to_json().decode()) == event


def test_ids_are_made_in_order() -> None:
    first, second = DomainEvent("t", {}, {}), DomainEvent("t", {}, {})

    assert first.event_id.version == 7
    assert first.event_id < second.event_id


def test_the_time_may_be_written_with_an_offset_and_fields_may_be_null_or_unknown() -> None:
    event = DomainEvent.from_json(body(occurredAt="2025-08-26T12:15:01+02:00", extra=1))

    assert event.occurred_at == OCCURRED
    assert event.tenant_id is None


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (body(eventId=None), "envelope.eventId"),
        (body(eventId="x"), "envelope.eventId"),
        (body(type=None), "envelope.type"),
        (body(type=""), "envelope.type"),
        (body(type=3), "envelope.type"),
        (body(occurredAt="yesterday"), "envelope.occurredAt"),
        (body(occurredAt="2025-08-26T10:15:01"), "envelope.occurredAt"),
        (b'{"key":{},"payload":{}}', "envelope"),
        (body().replace(b'"k": "1"', b'"k": 1'), "key[...]"),
        (body().replace(b'"payload": {}', b'"payload": []'), "payload"),
        (b"[]", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 1_048_576, None),
        (b'{"envelope":' * 10_000, None),
    ],
)
def test_what_is_no_event_is_refused_by_the_place_at_fault(data: bytes, field: str | None) -> None:
    with pytest.raises(InvalidMessage) as refused:
        DomainEvent.from_json(data)

    assert refused.value.field == field


def test_a_payload_may_be_nested_64_levels_deep() -> None:
    deep = DomainEvent("t", {"k": "1"}, nested(64))

    assert DomainEvent.from_json(deep.to_json()).payload == nested(64)
    with pytest.raises(InvalidMessage, match="nested deeper"):
        DomainEvent("t", {"k": "1"}, nested(65)).to_json()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {object()}, "\ud800", object()])
def test_a_payload_that_is_no_strict_json_is_refused_by_its_path(value: object) -> None:
    with pytest.raises(InvalidMessage) as refused:
        DomainEvent("t", {"k": "1"}, {"a": [value]}).to_json()

    assert (refused.value.field or "").startswith("payload.a[0]")


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"])
def test_a_moment_outside_the_calendar_in_utc_is_refused(moment: str) -> None:
    with pytest.raises(InvalidMessage, match="calendar") as read:
        DomainEvent.from_json(body(occurredAt=moment))
    with pytest.raises(InvalidMessage, match="calendar") as written:
        DomainEvent("t", {"k": "1"}, {}, occurred_at=datetime.fromisoformat(moment)).to_json()

    assert (read.value.field, written.value.field) == ("envelope.occurredAt", "occurred_at")
