"""Redriving and skipping: only what failed or is parked, as a whole, with who and why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.outbox.test_looking import fail

from postroad.errors import InvalidInput, NotRedrivable
from postroad.outbox import DomainEvent, OutboxRow

WHO: dict[str, Any] = {"by": "ada", "reason": "the rail is back"}


def row(fixture: OutboxFixture, event: DomainEvent) -> OutboxRow:
    found = fixture.outbox.get(event.event_id)
    assert found is not None
    return found


def park(fixture: OutboxFixture, head: DomainEvent, *behind: DomainEvent) -> None:
    """Set a key aside as a dispatcher does."""
    fail(fixture, head)
    for event in behind:
        fixture.set(event, state="PARKED")
    lane = row(fixture, head).lane
    values = (head.tenant_id or "", lane, str(head.event_id))
    fixture.run("INSERT INTO outbox_parked (tenant, lane, event_id) VALUES (?, ?, ?)", *values)


def test_a_failed_row_is_sent_again_under_its_id(fixture: OutboxFixture) -> None:
    event = fixture.add()
    fail(fixture, event, "TimeoutError: x")
    fixture.set(event, next_attempt="2999-01-01T00:00:00.000Z")
    before = row(fixture, event)

    redriven = fixture.outbox.redrive([event.event_id], **WHO)

    after = row(fixture, event)
    assert redriven == [event.event_id]
    assert (after.state, after.attempts, after.last_error, after.redrives) == ("PENDING", 0, "TimeoutError: x", 1)
    assert (after.seq, after.id) == (before.seq, before.id)
    assert fixture.outbox.why(event.event_id) == "ready"
    (entry,) = fixture.outbox.audit()
    assert (entry.actor, entry.action, entry.event_id) == ("ada", "redrive", event.event_id)
    assert (entry.reason, entry.before, entry.after) == ("the rail is back", "FAILED", "PENDING")
    assert entry.at.tzinfo is not None


def test_rows_are_redriven_in_the_order_of_their_numbers(fixture: OutboxFixture) -> None:
    events = [fixture.add(key={"k": str(n)}) for n in range(4)]
    for event in events:
        fail(fixture, event)

    redriven = fixture.outbox.redrive([str(event.event_id) for event in reversed(events)], **WHO)

    assert redriven == [event.event_id for event in events]
    assert [entry.event_id for entry in fixture.outbox.audit()] == redriven[::-1]


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ({"key": "tr_0"}, [0]),
        ({"key": {"transferId": "tr_0"}}, [0]),
        ({"tenant_id": "acme"}, [0, 1]),
        ({"type": "orders.placed"}, [1, 2]),
        ({"type": "orders.placed", "tenant_id": "acme"}, [1]),
        ({"type": "orders.placed", "limit": 1}, [1]),
        ({"key": "none"}, []),
    ],
)
def test_rows_are_chosen_by_what_they_have_in_common(
    fixture: OutboxFixture, selector: dict[str, Any], chosen: list[int]
) -> None:
    kinds = [("acme", "transfers.submitted"), ("acme", "orders.placed"), ("other", "orders.placed")]
    events = [
        fixture.add(key={"transferId": f"tr_{n}"}, tenant_id=tenant, type=kind)
        for n, (tenant, kind) in enumerate(kinds)
    ]
    untouched = fixture.add(key={"transferId": "tr_0"}, tenant_id="acme")
    for event in events:
        fail(fixture, event)

    planned = fixture.outbox.redrive(**WHO, **selector, dry_run=True)
    nothing_yet = fixture.outbox.audit()
    redriven = fixture.outbox.redrive(**WHO, **selector)

    assert planned == redriven == [events[n].event_id for n in chosen]
    assert nothing_yet == []
    assert [row(fixture, event).state == "PENDING" for event in events] == [n in chosen for n in range(3)]
    assert row(fixture, untouched).redrives == 0


def test_a_group_of_failures_is_redriven_together(fixture: OutboxFixture) -> None:
    events = [fixture.add(key={"k": str(n)}) for n in range(3)]
    for event, error in zip(events, ["TimeoutError: 5 s", "TimeoutError: 6 s", "rejected: no"], strict=True):
        fail(fixture, event, error)
    group = fixture.outbox.failed_groups()[0].group

    redriven = fixture.outbox.redrive(**WHO, group=group)

    assert redriven == [event.event_id for event in events[:2]]


@pytest.mark.parametrize("state", ["SENT", "SKIPPED", "PENDING"])
def test_what_is_neither_failed_nor_parked_is_not_redriven_and_nothing_changes(
    fixture: OutboxFixture, state: str
) -> None:
    failed, other = fixture.add(key={"k": "1"}), fixture.add(key={"k": "2"})
    fail(fixture, failed)
    fixture.set(other, state=state)

    with pytest.raises(NotRedrivable, match=f"{other.event_id} is {state}"):
        fixture.outbox.redrive([failed.event_id, other.event_id], **WHO)
    with pytest.raises(NotRedrivable):
        fixture.outbox.skip(other.event_id, **WHO)

    assert (row(fixture, failed).state, row(fixture, other).state) == ("FAILED", state)
    assert fixture.outbox.audit() == []


def test_an_unknown_event_is_not_redriven(fixture: OutboxFixture) -> None:
    for unknown in (uuid4(), "order-17"):
        with pytest.raises(NotRedrivable, match=str(unknown)):
            fixture.outbox.redrive([unknown], **WHO)
        with pytest.raises(NotRedrivable):
            fixture.outbox.skip(unknown, **WHO)

    assert fixture.outbox.audit() == []


@pytest.mark.parametrize("who", [{"by": "", "reason": "x"}, {"by": "x", "reason": " "}, {"by": "\n", "reason": ""}])
def test_who_and_why_must_be_said(fixture: OutboxFixture, who: dict[str, Any]) -> None:
    event = fixture.add()
    fail(fixture, event)

    for attempt in (
        lambda: fixture.outbox.redrive([event.event_id], **who),
        lambda: fixture.outbox.skip(event.event_id, **who),
    ):
        with pytest.raises(ValueError, match=r"by|reason"):
            attempt()
    assert row(fixture, event).state == "FAILED"


def test_a_redrive_needs_a_selector(fixture: OutboxFixture) -> None:
    selectors: list[dict[str, Any]] = [{}, {"limit": 3}, {"canary": 1}]
    for selector in selectors:
        with pytest.raises(ValueError, match="name event ids"):
            fixture.outbox.redrive(**WHO, **selector)
    with pytest.raises(ValueError, match="canary"):
        fixture.outbox.redrive(key="k", canary=0, **WHO)


@pytest.mark.parametrize("by", ["head", "key", "mapping", "parked"])
def test_a_parked_key_comes_back_as_a_whole(fixture: OutboxFixture, by: str) -> None:
    head, *behind = [fixture.add(tenant_id="acme") for _ in range(3)]
    elsewhere = fixture.add(key={"k": "2"})
    park(fixture, head, *behind)
    park(fixture, elsewhere)
    selectors: dict[str, dict[str, Any]] = {
        "head": {"event_ids": [head.event_id]},
        "key": {"key": "tr_1", "tenant_id": "acme"},
        "mapping": {"key": MappingProxyType({"transferId": "tr_1"}), "tenant_id": "acme"},
        "parked": {"event_ids": [behind[0].event_id]},
    }

    redriven = fixture.outbox.redrive(**selectors[by], **WHO)

    assert redriven == [event.event_id for event in (head, *behind)]
    assert {row(fixture, event).state for event in (head, *behind)} == {"PENDING"}
    assert [entry.before for entry in fixture.outbox.audit()] == ["PARKED", "PARKED", "FAILED"]
    assert fixture.run("SELECT event_id FROM outbox_parked") == [(str(elsewhere.event_id),)]


def test_a_redriven_row_is_no_gap_any_more(fixture: OutboxFixture) -> None:
    event = fixture.add()
    fail(fixture, event)
    fixture.run("INSERT INTO outbox_gaps VALUES ('', 'tr_1', 1, ?)", str(event.event_id))

    fixture.outbox.redrive([event.event_id], **WHO)

    assert fixture.run("SELECT event_id FROM outbox_gaps") == []


def test_a_skipped_row_opens_its_key_and_is_named_in_the_next_gap(fixture: OutboxFixture) -> None:
    head, behind = fixture.add(tenant_id="acme"), fixture.add(tenant_id="acme")
    fail(fixture, head)

    fixture.outbox.skip(head.event_id, **WHO)

    assert row(fixture, head).state == "SKIPPED"
    assert fixture.outbox.why(behind.event_id) == "ready"
    assert fixture.run("SELECT tenant, lane, seq, event_id FROM outbox_gaps") == [
        ("acme", "tr_1", 1, str(head.event_id))
    ]
    (entry,) = fixture.outbox.audit()
    assert (entry.action, entry.before, entry.after) == ("skip", "FAILED", "SKIPPED")


def test_skipping_the_head_of_a_parked_key_lets_the_rest_go(fixture: OutboxFixture) -> None:
    head, *behind = [fixture.add() for _ in range(3)]
    park(fixture, head, *behind)

    fixture.outbox.skip(head.event_id, **WHO)

    assert [row(fixture, event).state for event in (head, *behind)] == ["SKIPPED", "PENDING", "PENDING"]
    assert fixture.run("SELECT 1 FROM outbox_parked") == []


def test_skipping_a_parked_row_leaves_its_key_parked(fixture: OutboxFixture) -> None:
    head, *behind = [fixture.add() for _ in range(3)]
    park(fixture, head, *behind)

    fixture.outbox.skip(behind[0].event_id, **WHO)

    assert [row(fixture, event).state for event in (head, *behind)] == ["FAILED", "SKIPPED", "PARKED"]
    assert len(fixture.run("SELECT 1 FROM outbox_parked")) == 1


def test_a_row_that_only_has_text_for_an_id_can_be_skipped(fixture: OutboxFixture) -> None:
    insert = "INSERT INTO outbox (id, eventtype, payload, state) VALUES (?, 't', ?, 'FAILED')"
    fixture.run(insert, str(uuid4()), '{"envelope": {"eventId": "order-17"}}')

    fixture.outbox.skip("order-17", **WHO)

    assert [entry.event_id for entry in fixture.outbox.audit()] == ["order-17"]


def test_a_redrive_wakes_the_dispatchers(on_postgres: OutboxFixture) -> None:
    event = on_postgres.add()
    fail(on_postgres, event)
    with psycopg.connect(on_postgres.dsn, autocommit=True) as listening:
        listening.execute("LISTEN postroad_outbox")

        on_postgres.outbox.redrive([event.event_id], **WHO)

        assert [notice.payload for notice in listening.notifies(timeout=30, stop_after=1)] == ["outbox"]


class Settling:
    """In the place of a dispatcher: does something to every row that becomes pending, until the end of the block."""

    def __init__(self, fixture: OutboxFixture, settle: Callable[[str], None]) -> None:
        self._fixture, self._settle, self._stop = fixture, settle, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for (event_id,) in self._fixture.run(
                "SELECT event_id FROM outbox WHERE state = 'PENDING' AND attempts = 0"
            ):
                self._settle(event_id)


def failed_rows(fixture: OutboxFixture, count: int) -> list[UUID]:
    events = [fixture.add(key={"k": str(n)}) for n in range(count)]
    for event in events:
        fail(fixture, event, "TimeoutError: no answer")
    return [event.event_id for event in events]


def test_the_rest_follows_when_the_canaries_are_sent(fixture: OutboxFixture) -> None:
    ids = failed_rows(fixture, 5)

    def send(event_id: str) -> None:
        fixture.run("UPDATE outbox SET state = 'SENT', attempts = 1 WHERE event_id = ?", event_id)

    with Settling(fixture, send):
        redriven = fixture.outbox.redrive(type="transfers.submitted", canary=2, **WHO)

    assert redriven == ids
    assert fixture.outbox.status().failed == 0


@pytest.mark.parametrize("state", ["FAILED", "PENDING"])
def test_the_rest_stays_when_a_canary_fails_as_before(fixture: OutboxFixture, state: str) -> None:
    ids = failed_rows(fixture, 5)

    def refuse(event_id: str) -> None:
        change = "UPDATE outbox SET state = ?, attempts = 1, lasterror = 'TimeoutError: no answer' WHERE event_id = ?"
        fixture.run(change, state, event_id)

    with Settling(fixture, refuse):
        redriven = fixture.outbox.redrive(type="transfers.submitted", canary=2, **WHO)

    assert redriven == ids[:2]
    assert len(fixture.outbox.audit()) == 2


def test_a_canary_that_fails_in_another_way_lets_the_rest_follow(on_sqlite: OutboxFixture) -> None:
    ids = failed_rows(on_sqlite, 3)

    def refuse(event_id: str) -> None:
        change = "UPDATE outbox SET state = 'FAILED', attempts = 1, lasterror = 'rejected: no' WHERE event_id = ?"
        on_sqlite.run(change, event_id)

    with Settling(on_sqlite, refuse):
        redriven = on_sqlite.outbox.redrive(type="transfers.submitted", canary=1, **WHO)

    assert redriven == ids


def test_canaries_that_are_all_there_is_are_not_waited_for(fixture: OutboxFixture) -> None:
    ids = failed_rows(fixture, 2)

    assert fixture.outbox.redrive(type="transfers.submitted", canary=10, **WHO) == ids


def test_canaries_of_nothing_redrive_nothing(fixture: OutboxFixture) -> None:
    failed_rows(fixture, 3)

    assert fixture.outbox.redrive(type="transfers.cancelled", canary=1, **WHO) == []
    assert fixture.outbox.status().failed == 3
    assert fixture.outbox.audit() == []


@pytest.mark.parametrize("count", [0, -1, True, "2"])
def test_a_number_that_counts_nothing_is_refused(fixture: OutboxFixture, count: Any) -> None:
    failed_rows(fixture, 2)

    for name in ("limit", "canary"):
        with pytest.raises(ValueError, match=name):
            fixture.outbox.redrive(type="transfers.submitted", **{name: count}, **WHO)
    assert fixture.outbox.status().failed == 2


def test_an_event_may_be_named_alone_and_in_any_spelling_of_its_id(fixture: OutboxFixture) -> None:
    first, second, third = failed_rows(fixture, 3)

    assert fixture.outbox.redrive(first, **WHO) == [first]
    assert fixture.outbox.redrive(str(second).upper(), **WHO) == [second]
    assert fixture.outbox.redrive([third.hex], **WHO) == [third]
    assert fixture.outbox.why(str(first).upper()) == "ready"


def test_a_row_whose_id_is_spelled_in_another_way_is_redriven(fixture: OutboxFixture) -> None:
    ids = [uuid4() for _ in range(2)]
    for event_id, spelled in ((ids[0], ids[0].hex.upper()), (ids[1], str(ids[1]).upper())):
        body = an_event(event_id=event_id, key={"k": spelled}).to_json().decode().replace(str(event_id), spelled)
        fixture.run(
            "INSERT INTO outbox (id, eventtype, payload, state) VALUES (?, 't', ?, 'FAILED')", str(uuid4()), body
        )

    redriven = fixture.outbox.redrive(type="t", **WHO)

    assert redriven == ids
    assert fixture.run("SELECT state, redrives FROM outbox") == [("PENDING", 1), ("PENDING", 1)]
    assert len(fixture.outbox.audit()) == 2


def test_text_that_no_database_stores_is_refused(fixture: OutboxFixture) -> None:
    failed_rows(fixture, 1)

    with pytest.raises(ValueError, match="by"):
        fixture.outbox.redrive(type="transfers.submitted", by="a\0", reason="x")
    with pytest.raises(InvalidInput, match="event_id"):
        fixture.outbox.get("a\0")
    assert fixture.outbox.status().failed == 1
