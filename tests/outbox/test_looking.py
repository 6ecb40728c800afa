"""What operators see: counts, failed rows, held keys, and why an event waits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.outbox.fixtures import OutboxFixture, an_event

from postroad.outbox import DomainEvent, OutboxStatus

FAR = "9999-12-31"


def in_an_hour(fixture: OutboxFixture) -> str:
    if fixture.on_postgres:
        return str(fixture.run("SELECT (now() + interval '1 hour')::text")[0][0])
    return str(fixture.run("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 hour')")[0][0])


def fail(fixture: OutboxFixture, event: DomainEvent, error: str = "TimeoutError: no answer") -> None:
    fixture.set(event, state="FAILED", attempts=10, lasterror=error)


def test_an_empty_outbox_counts_nothing(fixture: OutboxFixture) -> None:
    assert fixture.outbox.status() == OutboxStatus(
        pending=0,
        sent=0,
        failed=0,
        parked=0,
        skipped=0,
        blocked_keys=0,
        oldest_pending_seconds=0.0,
        oldest_open_transaction_seconds=0.0,
        target_error=None,
        dead_tuples=0,
    )
    assert fixture.outbox.failed() == []
    assert fixture.outbox.keys() == []
    assert fixture.outbox.audit() == []
    assert fixture.outbox.get(uuid4()) is None


def test_the_status_counts_rows_by_state(fixture: OutboxFixture) -> None:
    events = [fixture.add(key={"k": str(n)}) for n in range(9)]
    for event, state in zip(events, ["SENT", "SENT", "FAILED", "DONE", "PARKED", "SKIPPED", "FAILED"], strict=False):
        fixture.set(event, state=state)
    fixture.run("UPDATE outbox_meta SET target_error = 'AccessDenied'")

    status = fixture.outbox.status()

    assert (status.pending, status.sent, status.parked, status.skipped) == (2, 2, 1, 1)
    assert status.failed == 3
    assert status.blocked_keys == 4
    assert status.target_error == "AccessDenied"


def test_rows_that_are_done_are_counted_up_to_a_number_and_estimated_from_there_on(
    fixture: OutboxFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.outbox.queries._MOST_COUNTED", 10)
    with fixture.connection() as connection:
        fixture.outbox.add_many(connection, [an_event() for _ in range(50)])
        connection.commit()
    fixture.run("UPDATE outbox SET state = 'SENT' WHERE seq <= 40")
    if fixture.on_postgres:
        fixture.run("ANALYZE outbox")

    status = fixture.outbox.status()

    assert (status.pending, status.sent, status.skipped) == (10, 40, 0)


def test_the_oldest_pending_row_is_aged_by_when_it_was_recorded(fixture: OutboxFixture) -> None:
    old, sent = fixture.add(), fixture.add()
    fixture.set(old, createdat="2020-01-01T00:00:00.000Z")
    fixture.set(sent, createdat="2010-01-01T00:00:00.000Z", state="SENT")

    years = (datetime.now(UTC) - datetime(2020, 1, 1, tzinfo=UTC)).total_seconds()
    assert abs(fixture.outbox.status().oldest_pending_seconds - years) < 3_600


def test_failed_rows_come_in_pages_oldest_first(fixture: OutboxFixture) -> None:
    events = [fixture.add(key={"k": str(n)}) for n in range(5)]
    for event in (events[3], events[0], events[2]):
        fail(fixture, event)

    first = fixture.outbox.failed(limit=2)
    rest = fixture.outbox.failed(limit=2, after=first[-1].event_id)

    assert [row.event_id for row in first] == [events[0].event_id, events[2].event_id]
    assert [row.event_id for row in rest] == [events[3].event_id]
    assert fixture.outbox.failed(after=first[-1].seq) == rest
    assert (rest[0].last_error, rest[0].attempts) == ("TimeoutError: no answer", 10)


def test_failures_are_grouped_by_type_and_kind_of_error(fixture: OutboxFixture) -> None:
    errors = ["TimeoutError: no answer after 5 s", "TimeoutError: no answer after 6 s", "rejected: too old"]
    events = [fixture.add(key={"k": str(n)}) for n in range(3)]
    for event, error in zip(events, errors, strict=True):
        fail(fixture, event, error)

    groups = fixture.outbox.failed_groups()

    assert [(group.count, group.event_type, group.oldest) for group in groups] == [
        (2, "transfers.submitted", events[0].event_id),
        (1, "transfers.submitted", events[2].event_id),
    ]


def test_a_held_key_is_listed_with_its_head_and_what_waits_behind_it(fixture: OutboxFixture) -> None:
    head, *behind = [fixture.add(tenant_id="acme") for _ in range(3)]
    fixture.add(key={"k": "free"})
    fail(fixture, head, "rejected: no")

    (key,) = fixture.outbox.keys()

    assert (key.tenant_id, key.lane, key.head, key.state, key.waiting) == ("acme", "tr_1", head.event_id, "FAILED", 2)
    assert key.reason == "failed: rejected: no"
    assert {each.lane for each in fixture.outbox.keys(blocked=False)} == {"tr_1", "free"}
    assert fixture.outbox.why(behind[0].event_id) == f"blocked by {head.event_id}"


def test_tenants_with_the_same_lane_are_two_keys(fixture: OutboxFixture) -> None:
    for tenant in ("a", "b", None):
        fixture.add(tenant_id=tenant)

    assert {(key.tenant_id, key.waiting) for key in fixture.outbox.keys(blocked=False)} == {
        ("a", 0),
        ("b", 0),
        (None, 0),
    }
    assert len(fixture.outbox.keys(blocked=False, limit=2)) == 2


def test_where_keys_go_on_past_failed_rows_none_is_held(fixture: OutboxFixture) -> None:
    head, behind = fixture.add(), fixture.add()
    fail(fixture, head)
    fixture.run("UPDATE outbox_meta SET policy = 'skip'")

    assert fixture.outbox.keys() == []
    assert fixture.outbox.why(behind.event_id) == "ready"


def test_a_row_that_is_never_due_holds_its_key(fixture: OutboxFixture) -> None:
    event = fixture.add()
    fixture.set(event, next_attempt="infinity", attempts=-5)

    (key,) = fixture.outbox.keys()
    row = fixture.outbox.get(event.event_id)

    assert key.head == event.event_id
    assert key.reason.startswith(f"waiting until {FAR}")
    assert row is not None
    assert (row.next_attempt.year, row.attempts) == (9999, 0)


def test_a_row_in_an_unknown_state_counts_as_failed_and_holds_its_key(fixture: OutboxFixture) -> None:
    event, behind = fixture.add(), fixture.add()
    fixture.set(event, state="DONE")

    assert [row.state for row in fixture.outbox.failed()] == ["DONE"]
    assert [held.reason for held in fixture.outbox.keys(limit=5)] == ["failed: unknown state 'DONE'"]
    assert fixture.outbox.why(event.event_id) == "failed: unknown state 'DONE'"
    assert fixture.outbox.why(behind.event_id) == f"blocked by {event.event_id}"


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ({}, "ready"),
        ({"state": "SENT"}, "sent"),
        ({"state": "SKIPPED"}, "skipped"),
        ({"state": "FAILED", "lasterror": "rejected: no"}, "failed: rejected: no"),
        (
            {"lease_owner": "host-1", "lease_token": 3, "lease_until": "9000-01-01T00:00:00.000Z"},
            "leased by host-1 until 9000-01-01T00:00:00+00:00",
        ),
        ({"lease_owner": "host-1", "lease_token": 3, "lease_until": "2000-01-01T00:00:00.000Z"}, "ready"),
        (
            {"lease_owner": "host-1", "lease_token": 3, "lease_until": "infinity"},
            "leased by host-1 until 9999-12-31T00:00:00+00:00",
        ),
        ({"next_attempt": "9000-01-01T00:00:00.000Z"}, "waiting until 9000-01-01T00:00:00+00:00"),
    ],
)
def test_why_says_in_one_sentence_what_an_event_waits_for(
    fixture: OutboxFixture, columns: dict[str, object], answer: str
) -> None:
    event = fixture.add()
    fixture.set(event, **columns)

    assert fixture.outbox.why(event.event_id) == answer


def test_why_names_what_is_wrong_with_the_target(fixture: OutboxFixture) -> None:
    event = fixture.add()
    fixture.run("UPDATE outbox_meta SET target_error = 'AccessDenied'")

    assert fixture.outbox.why(event.event_id) == "target unavailable: AccessDenied"


def test_why_names_the_row_behind_which_another_is_parked(fixture: OutboxFixture) -> None:
    head, parked = fixture.add(), fixture.add()
    fail(fixture, head)
    fixture.set(parked, state="PARKED")

    assert fixture.outbox.why(parked.event_id) == f"blocked by {head.event_id} (parked)"


def test_why_says_that_an_event_is_unknown(fixture: OutboxFixture) -> None:
    event = an_event()

    assert fixture.outbox.why(event.event_id).startswith("unknown")


def test_dead_rows_are_counted_on_postgresql(on_postgres: OutboxFixture) -> None:
    on_postgres.add()
    on_postgres.run("ALTER TABLE outbox SET (autovacuum_enabled = off)")
    on_postgres.run("UPDATE outbox SET lasterror = 'x'")
    on_postgres.run("SELECT pg_stat_force_next_flush()")
    on_postgres.run("ANALYZE outbox")

    assert on_postgres.outbox.status().dead_tuples >= 1


@pytest.mark.parametrize("limit", [0, -1, True, "5"])
def test_a_list_of_no_length_is_refused(fixture: OutboxFixture, limit: Any) -> None:
    for ask in (fixture.outbox.failed, fixture.outbox.keys, fixture.outbox.audit):
        with pytest.raises(ValueError, match="limit"):
            ask(limit=limit)
