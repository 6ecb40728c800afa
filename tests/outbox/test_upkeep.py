"""Pruning, reconciling and the rights of database roles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors as pg
from tests.outbox.fixtures import OutboxFixture, an_event

from postroad.errors import ConfigurationError, DuplicateEvent
from postroad.inbox import Inbox

LONG_AGO = "2020-01-01T00:00:00.000Z"
ALL_STATES = ("PENDING", "SENT", "FAILED", "PARKED", "SKIPPED", "DONE")


def test_only_old_rows_that_are_done_are_pruned(fixture: OutboxFixture) -> None:
    for age in (LONG_AGO, None):
        for state in ALL_STATES:
            event = fixture.add(key={"k": state})
            fixture.set(event, state=state)
            if age is not None:
                fixture.set(event, updatedat=age)

    assert fixture.outbox.prune() == 2

    left = sorted(state for (state,) in fixture.run("SELECT state FROM outbox"))
    assert left == sorted([*ALL_STATES, "PENDING", "FAILED", "PARKED", "DONE"])


def test_rows_are_pruned_in_batches(fixture: OutboxFixture) -> None:
    with fixture.connection() as connection:
        fixture.outbox.add_many(connection, [an_event(key={"k": str(n)}) for n in range(25)])
        connection.commit()
    fixture.run("UPDATE outbox SET state = 'SENT', updatedat = ?", LONG_AGO)

    assert fixture.outbox.prune(batch=10) == 25
    assert fixture.outbox.prune(batch=10) == 0


def test_how_old_is_old_enough_is_the_callers_to_say(fixture: OutboxFixture) -> None:
    fixture.set(fixture.add(), state="SENT", updatedat=LONG_AGO)

    assert fixture.outbox.prune(older_than=timedelta(days=365_00)) == 0
    assert fixture.outbox.prune(older_than=timedelta.max) == 0
    assert fixture.outbox.prune(older_than=timedelta(0)) == 1
    refused: list[dict[str, Any]] = [{"older_than": timedelta(-1)}, {"older_than": 5}, {"batch": 0}]
    for arguments in refused:
        with pytest.raises(ValueError, match=r"older_than|batch"):
            fixture.outbox.prune(**arguments)


def test_numbers_are_not_given_again_after_a_prune(fixture: OutboxFixture) -> None:
    last = fixture.add()
    fixture.set(last, state="SENT", updatedat=LONG_AGO)
    fixture.outbox.prune()

    after = fixture.outbox.get(fixture.add().event_id)

    assert after is not None
    assert after.seq == 2


@pytest.fixture
def inbox(fixture: OutboxFixture) -> Iterator[Inbox]:
    inbox = Inbox.open(fixture.dsn)
    inbox.init()
    yield inbox
    inbox.close()


def handle(inbox: Inbox, *event_ids: UUID) -> None:
    for event_id in event_ids:
        with inbox.transaction() as connection:
            inbox.first_time(connection, "ledger", event_id)


def test_what_was_sent_and_what_was_handled_are_compared(fixture: OutboxFixture, inbox: Inbox) -> None:
    events = [fixture.add(key={"k": str(n)}) for n in range(6)]
    for event in events[:4]:
        fixture.set(event, state="SENT", updatedat=LONG_AGO)
    fixture.set(events[4], state="SENT")
    strangers = [uuid4(), an_event().event_id]
    handle(inbox, events[0].event_id, events[2].event_id, *strangers)

    found = fixture.outbox.reconcile(inbox, consumer="ledger")

    assert found.ok == 2
    assert found.missing == [events[1].event_id, events[3].event_id]
    assert sorted(found.unknown) == sorted(strangers)


def test_only_the_types_that_a_consumer_takes_are_compared(fixture: OutboxFixture, inbox: Inbox) -> None:
    for n, kind in enumerate(["a.b", "a.c", "ab", "z"]):
        fixture.set(fixture.add(key={"k": str(n)}, type=kind), state="SENT", updatedat=LONG_AGO)

    found = [
        len(fixture.outbox.reconcile(inbox, consumer="ledger", types=types).missing)
        for types in (None, ["a.*"], ["a.*", "z"], ["a.b"], [])
    ]

    assert found == [4, 2, 3, 1, 0]


def test_handled_events_that_were_pruned_are_not_unknown(fixture: OutboxFixture, inbox: Inbox) -> None:
    pruned = fixture.add()
    handle(inbox, pruned.event_id)
    fixture.set(pruned, state="SENT", updatedat=LONG_AGO)
    fixture.outbox.prune()

    assert fixture.outbox.reconcile(inbox, consumer="ledger").unknown == []


def test_a_handled_event_from_beyond_the_calendar_is_unknown(fixture: OutboxFixture, inbox: Inbox) -> None:
    fixture.add()
    far = UUID("ffffffff-ffff-7000-8000-000000000001")
    handle(inbox, far)

    assert fixture.outbox.reconcile(inbox, consumer="ledger").unknown == [far]


def test_more_rows_than_a_page_are_compared(fixture: OutboxFixture, inbox: Inbox) -> None:
    with fixture.connection() as connection:
        ids = fixture.outbox.add_many(connection, [an_event(key={"k": str(n)}) for n in range(2_500)])
        connection.commit()
    fixture.run("UPDATE outbox SET state = 'SENT', updatedat = ?", LONG_AGO)

    assert sorted(fixture.outbox.reconcile(inbox, consumer="ledger").missing) == sorted(ids)


@pytest.fixture
def roles(on_postgres: OutboxFixture) -> Iterator[dict[str, str]]:
    """A database role for each role of the outbox."""
    names = {role: f"{role}_{uuid4().hex[:8]}" for role in ("producer", "dispatcher", "operator")}
    for role, name in names.items():
        on_postgres.run(f'CREATE ROLE "{name}"')
        on_postgres.run(on_postgres.outbox.grants(role, to=name))  # type: ignore[arg-type]  # keys of the dict
    yield names
    for name in names.values():
        on_postgres.run(f'DROP OWNED BY "{name}"')
        on_postgres.run(f'DROP ROLE "{name}"')


def test_sec12_a_producer_may_record_and_nothing_else(on_postgres: OutboxFixture, roles: dict[str, str]) -> None:
    event = an_event()
    with psycopg.connect(on_postgres.dsn) as connection:
        connection.execute(f'SET ROLE "{roles["producer"]}"')
        on_postgres.outbox.add(connection, event)
        on_postgres.outbox.add_many(connection, [an_event(), an_event()])
        with pytest.raises(DuplicateEvent):
            on_postgres.outbox.add(connection, event)
        with pytest.raises(DuplicateEvent):
            on_postgres.outbox.add_many(connection, [an_event(), event])
        connection.commit()
        for forbidden in ("SELECT 1 FROM outbox", "UPDATE outbox SET state = 'SENT'", "DELETE FROM outbox"):
            with pytest.raises(pg.InsufficientPrivilege):
                connection.execute(forbidden)
            connection.rollback()
            connection.execute(f'SET ROLE "{roles["producer"]}"')

    assert on_postgres.count() == 3


def test_sec12_a_dispatcher_may_read_update_and_prune_but_not_write_the_audit(
    on_postgres: OutboxFixture, roles: dict[str, str]
) -> None:
    on_postgres.add()
    with psycopg.connect(on_postgres.dsn) as connection:
        connection.execute(f'SET ROLE "{roles["dispatcher"]}"')
        connection.execute("UPDATE outbox SET lease_token = nextval('outbox_token'), state = 'SENT'")
        connection.execute("SELECT setval('outbox_wake', 1), policy FROM outbox_meta")
        connection.execute("DELETE FROM outbox_gaps")
        connection.execute("DELETE FROM outbox")
        connection.commit()
        with pytest.raises(pg.InsufficientPrivilege):
            connection.execute("INSERT INTO outbox_audit (actor) VALUES ('x')")


def test_sec12_an_operator_may_prune_and_write_the_audit(on_postgres: OutboxFixture, roles: dict[str, str]) -> None:
    event = on_postgres.add()
    on_postgres.set(event, state="FAILED")
    separator = "&" if "?" in on_postgres.dsn else "?"
    outbox = type(on_postgres.outbox).postgres(f"{on_postgres.dsn}{separator}options=-crole%3D{roles['operator']}")

    outbox.redrive([event.event_id], by="ada", reason="x")
    outbox.prune()

    assert [entry.actor for entry in outbox.audit()] == ["ada"]
    outbox.close()


def test_rights_are_granted_to_plain_names_only(on_postgres: OutboxFixture) -> None:
    for role, to in (("producer", 'x"; DROP TABLE outbox; --'), ("owner", "x")):
        with pytest.raises(ConfigurationError):
            on_postgres.outbox.grants(role, to=to)  # type: ignore[arg-type]  # what is refused
