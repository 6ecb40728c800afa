"""Recording events: with the caller's own data or not at all, in order, once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.outbox.fixtures import OutboxFixture, an_event

from postroad import event
from postroad.errors import DuplicateEvent, InvalidMessage, MessageTooLarge, SchemaMismatch, UnknownEventType
from postroad.events import uuid7
from postroad.outbox import DomainEvent, Outbox

OFFERED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@event(name="orders.placed", version=2)
class OrderPlaced:
    number: int
    note: str = ""


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def stored(fixture: OutboxFixture, event_id: UUID) -> dict[str, Any]:
    """The event's JSON as it lies in the table."""
    value = fixture.run("SELECT payload FROM outbox WHERE event_id = ?", str(event_id))[0][0]
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found


def test_an_event_is_recorded_when_its_transaction_commits(fixture: OutboxFixture) -> None:
    added = an_event(tenant_id="acme", payload={"amount": {"value": "1.00"}, "é": [1, None, True]})
    with fixture.connection() as connection:
        event_id = fixture.outbox.add(connection, added)
        before = fixture.outbox.get(event_id)
        connection.commit()

    row = fixture.outbox.get(event_id)

    assert event_id == added.event_id
    assert before is None
    assert row is not None
    assert (row.id, row.event_id, row.event_type) == (event_id, event_id, "transfers.submitted")
    assert (row.tenant_id, row.lane, row.state, row.attempts, row.redrives) == ("acme", "tr_1", "PENDING", 0, 0)
    assert row.last_error is None
    assert abs(datetime.now(UTC) - row.created_at) < timedelta(hours=1)
    assert stored(fixture, event_id) == json.loads(added.to_json())


def test_a_rollback_takes_the_event_with_it(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        fixture.outbox.add(connection, an_event())
        connection.rollback()

    assert fixture.count() == 0


def test_a_rollback_to_a_savepoint_takes_the_event_with_it(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        kept = fixture.outbox.add(connection, an_event())
        connection.execute("SAVEPOINT before_it")
        fixture.outbox.add(connection, an_event())
        connection.execute("ROLLBACK TO SAVEPOINT before_it")
        connection.commit()

    assert fixture.run("SELECT event_id FROM outbox") == [(str(kept),)]


def test_numbers_rise_in_the_order_of_adding(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        ids = [fixture.outbox.add(connection, an_event()) for _ in range(20)]
        connection.commit()

    assert [UUID(found) for (found,) in fixture.run("SELECT event_id FROM outbox ORDER BY seq")] == ids


def test_a_registered_event_is_recorded_under_its_name(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        event_id = fixture.outbox.add(connection, OrderPlaced(7, "x"), key={"order": "7"}, tenant_id="acme")
        connection.commit()

    body = stored(fixture, event_id)
    assert body["envelope"]["type"] == "orders.placed"
    assert body["envelope"]["v"] == 2
    assert body["envelope"]["tenantId"] == "acme"
    assert (body["key"], body["payload"]) == ({"order": "7"}, {"number": 7, "note": "x"})


def test_a_registered_event_may_be_given_another_type(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        event_id = fixture.outbox.add(connection, OrderPlaced(7), key="7", type="orders.placed.eu")
        connection.commit()

    row = fixture.outbox.get(event_id)
    assert row is not None
    assert (row.event_type, row.lane) == ("orders.placed.eu", "7")
    assert stored(fixture, event_id)["key"] == {"key": "7"}


def test_what_is_said_beside_a_domain_event_replaces_its_own(fixture: OutboxFixture) -> None:
    moment = datetime(2025, 8, 26, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    event_id = uuid4()
    with fixture.connection() as connection:
        fixture.outbox.add(
            connection,
            an_event(),
            key={"a": "1"},
            tenant_id="other",
            type="t",
            traceparent=OFFERED,
            event_id=str(event_id),
            occurred_at=moment,
        )
        connection.commit()

    assert stored(fixture, event_id)["envelope"] == {
        "v": 1,
        "eventId": str(event_id),
        "occurredAt": "2025-08-26T10:00:00Z",
        "tenantId": "other",
        "traceparent": OFFERED,
        "type": "t",
    }


@pytest.mark.parametrize(
    ("key", "lane"),
    [
        ({"transferId": "tr_1", "a": "0"}, "tr_1"),
        ({"tenantId": "acme"}, "acme"),
        ({"b": "2", "a": "1", "C": "3"}, "3/1/2"),
        ({"key": "with / and é"}, "with / and é"),
    ],
)
def test_a_key_stands_for_a_lane_and_the_trigger_reads_the_same(
    fixture: OutboxFixture, key: dict[str, str], lane: str
) -> None:
    added = fixture.add(key=key)
    row_id = str(uuid4())
    fixture.run(
        "INSERT INTO outbox (id, eventtype, payload) VALUES (?, ?, ?)",
        row_id,
        "t",
        an_event(key=key, event_id=UUID(row_id)).to_json().decode(),
    )

    rows = [fixture.outbox.get(added.event_id), fixture.outbox.get(row_id)]
    assert [row.lane if row else None for row in rows] == [lane, lane]


def test_a_malformed_traceparent_is_dropped(fixture: OutboxFixture) -> None:
    added = fixture.add(traceparent="00-zz-01")

    assert "traceparent" not in stored(fixture, added.event_id)["envelope"]


def test_the_current_span_is_what_the_event_belongs_to(fixture: OutboxFixture) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        added = fixture.add()

    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert trace_id in stored(fixture, added.event_id)["envelope"]["traceparent"]


def test_the_same_event_id_twice_is_refused_and_the_transaction_goes_on(fixture: OutboxFixture) -> None:
    first = an_event()
    with fixture.connection() as connection:
        fixture.outbox.add(connection, first)
        with pytest.raises(DuplicateEvent):
            fixture.outbox.add(connection, first)
        fixture.outbox.add(connection, an_event())
        connection.commit()
        with pytest.raises(DuplicateEvent):
            fixture.outbox.add(connection, an_event(event_id=first.event_id))
        fixture.outbox.add(connection, an_event())
        connection.commit()

    assert fixture.count() == 3


def test_many_are_added_in_their_order(fixture: OutboxFixture) -> None:
    events = [an_event(key={"k": str(n % 7)}, tenant_id="acme") for n in range(300)]
    with fixture.connection() as connection:
        ids = fixture.outbox.add_many(connection, events)
        connection.commit()

    assert ids == [each.event_id for each in events]
    assert [UUID(found) for (found,) in fixture.run("SELECT event_id FROM outbox ORDER BY seq")] == ids
    assert fixture.run("SELECT DISTINCT tenant, state FROM outbox") == [("acme", "PENDING")]


def test_of_many_none_is_added_when_one_is_recorded_already(fixture: OutboxFixture) -> None:
    there = fixture.add()
    with fixture.connection() as connection:
        with pytest.raises(DuplicateEvent, match="none was added"):
            fixture.outbox.add_many(connection, [an_event(), an_event(event_id=there.event_id), an_event()])
        with pytest.raises(DuplicateEvent, match="given twice"):
            fixture.outbox.add_many(connection, [there, there])
        fixture.outbox.add_many(connection, [an_event()])
        connection.commit()

    assert fixture.count() == 2


def test_many_large_events_are_added_in_portions(fixture: OutboxFixture) -> None:
    events = [an_event(key={"k": str(n)}, payload={"a": "x" * 250_000}) for n in range(70)]
    with fixture.connection() as connection:
        fixture.outbox.add_many(connection, events)
        with pytest.raises(DuplicateEvent):
            fixture.outbox.add_many(connection, [*(an_event(payload=event.payload) for event in events), events[0]])
        connection.commit()

    assert fixture.count() == 70


def test_missing_tables_are_told_with_the_remedy(fixture: OutboxFixture) -> None:
    elsewhere = Outbox.postgres(table="other") if fixture.on_postgres else Outbox.sqlite(table="other")
    for attempt in (elsewhere.add, lambda connection, event: elsewhere.add_many(connection, [event])):
        with fixture.connection() as connection, pytest.raises(SchemaMismatch) as refused:
            attempt(connection, an_event())
        assert "postroad outbox init" in refused.value.remedy


def test_adding_many_does_not_commit(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        fixture.outbox.add_many(connection, [an_event(), an_event()])
        connection.rollback()
        assert fixture.outbox.add_many(connection, []) == []

    assert fixture.count() == 0


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("key", {"key": {}}),
        ("key", {"key": None}),
        ("key", {"key": {"k": ""}}),
        ("key", {"key": {"k": 3}}),
        ("key", {"key": {"": "x"}}),
        ("key", {"key": {"k": "a\0b"}}),
        ("key", {"key": {"k": "\ud800"}}),
        ("tenant_id", {"tenant_id": "a:b"}),
        ("tenant_id", {"tenant_id": "a" * 65}),
        ("tenant_id", {"tenant_id": ""}),
        ("tenant_id", {"tenant_id": 3}),
        ("type", {"type": ""}),
        ("type", {"type": "with spaces"}),
        ("type", {"type": "a" * 201}),
        ("type", {"type": None}),
        ("payload", {"payload": [1]}),
        ("payload.a[0]", {"payload": {"a": [float("nan")]}}),
        ("payload.a", {"payload": {"a": float("-inf")}}),
        ("payload.a[0]", {"payload": {"a": {object()}}}),
        ("payload.a.b", {"payload": {"a": {"b": "x\0"}}}),
        ("payload.a[1]", {"payload": {"a": ["x", "\0"]}}),
        ("payload.a", {"payload": {"a": "\ud800"}}),
        ("occurred_at", {"occurred_at": datetime(2025, 1, 1)}),
        ("occurred_at", {"occurred_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}),
        ("event_id", {"event_id": "x"}),
        ("v", {"v": 0}),
    ],
)
def test_bad_input_is_refused_by_its_field_and_the_transaction_goes_on(
    fixture: OutboxFixture, field: str, fields: dict[str, Any]
) -> None:
    with fixture.connection() as connection:
        with pytest.raises(InvalidMessage) as refused:
            fixture.outbox.add(connection, an_event(**fields))
        kept = fixture.outbox.add(connection, an_event())
        connection.commit()

    assert refused.value.field == field
    assert field.split("[")[0] in str(refused.value)
    assert fixture.run("SELECT event_id FROM outbox") == [(str(kept),)]


def test_a_payload_nested_deeper_than_64_levels_is_refused(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        fixture.outbox.add(connection, an_event(payload=nested(64)))
        with pytest.raises(InvalidMessage, match=r"payload\.a\.a.*nested"):
            fixture.outbox.add(connection, an_event(payload=nested(65)))


def test_text_that_only_looks_like_an_escaped_nul_is_recorded(fixture: OutboxFixture) -> None:
    added = fixture.add(payload={"a": "\\u0000"})

    assert stored(fixture, added.event_id)["payload"] == {"a": "\\u0000"}


def test_an_event_of_exactly_the_limit_is_recorded_and_one_byte_more_is_not(fixture: OutboxFixture) -> None:
    room = 262_144 - len(an_event(payload={"a": ""}, occurred_at=datetime(2025, 1, 1, tzinfo=UTC)).to_json())
    fits = an_event(payload={"a": "x" * room}, occurred_at=datetime(2025, 1, 1, tzinfo=UTC))
    above = an_event(payload={"a": "x" * (room + 1)}, occurred_at=datetime(2025, 1, 1, tzinfo=UTC))
    with fixture.connection() as connection:
        fixture.outbox.add(connection, fits)
        with pytest.raises(MessageTooLarge, match="262,145") as refused:
            fixture.outbox.add(connection, above)
        assert refused.value.field == "payload"
        fixture.outbox.add(connection, an_event())
        connection.commit()

    assert fixture.count() == 2


def test_a_registered_event_needs_a_key(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        with pytest.raises(InvalidMessage) as refused:
            fixture.outbox.add(connection, OrderPlaced(1))
        with pytest.raises(InvalidMessage):
            fixture.outbox.add(connection, {"type": "t"}, key="1")
        with pytest.raises(UnknownEventType):
            fixture.outbox.add(connection, _unregistered(), key="1")

    assert refused.value.field == "key"


def test_an_event_id_that_is_none_is_refused(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection, pytest.raises(InvalidMessage) as refused:
        fixture.outbox.add(connection, an_event(), event_id="not-a-uuid")

    assert refused.value.field == "event_id"


def test_a_long_key_is_recorded_too(fixture: OutboxFixture) -> None:
    first, second = fixture.add(key={"k": "x" * 100_000}), fixture.add(key={"k": "x" * 100_000})

    rows = [fixture.outbox.get(each.event_id) for each in (first, second)]
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[0].lane == rows[1].lane


def test_an_outbox_without_a_dsn_records(fixture: OutboxFixture) -> None:
    recorder = Outbox.postgres() if fixture.on_postgres else Outbox.sqlite()
    event_id = uuid7()
    with fixture.connection() as connection:
        recorder.add(connection, an_event(event_id=event_id))
        connection.commit()

    assert fixture.outbox.get(event_id) is not None


def _unregistered() -> object:
    from dataclasses import dataclass

    @dataclass
    class Unregistered:
        a: int = 1

    return Unregistered()


def test_a_domain_event_is_the_same_class_everywhere() -> None:
    from postroad import events, outbox

    assert outbox.DomainEvent is events.DomainEvent is DomainEvent
