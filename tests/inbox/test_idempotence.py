"""`assert_idempotent` finds handlers that cannot bear a second delivery, and says which tables tell."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.inbox.fixtures import InboxFixture
from tests.inbox.mail import event

from postroad.inbox import DomainEvent, insert_once
from postroad.testing import assert_idempotent

NOTES = "CREATE TABLE notes (id integer PRIMARY KEY, transfer text)"


def by_key(event: DomainEvent, connection: Any) -> None:
    insert_once(connection, "ledger", key={"account": event.key["transferId"]}, values={"times": 1})


def test_a_write_by_key_passes(fixture: InboxFixture) -> None:
    assert_idempotent(by_key, event("tr_1"), inbox=fixture.inbox, tables=["ledger"])

    assert fixture.times("tr_1") == 1


def test_all_tables_are_looked_at_when_none_is_named(fixture: InboxFixture) -> None:
    assert_idempotent(by_key, event("tr_1"), inbox=fixture.inbox)

    with pytest.raises(AssertionError, match="ledger"):
        assert_idempotent(lambda e, c: fixture.post(c, "tr_2"), event("tr_2"), inbox=fixture.inbox)


def test_a_handler_that_asks_the_inbox_itself_passes(fixture: InboxFixture) -> None:
    def handler(event: DomainEvent, connection: Any) -> None:
        if fixture.inbox.first_time(connection, "ledger", event.event_id):
            fixture.post(connection, "tr_1")

    assert_idempotent(handler, event("tr_1"), inbox=fixture.inbox, tables=["ledger", "inbox"])


def test_a_row_that_is_changed_again_is_found_with_its_table(fixture: InboxFixture) -> None:
    with pytest.raises(AssertionError, match="second run of the handler changed rows of ledger"):
        assert_idempotent(lambda e, c: fixture.post(c, "tr_1"), event("tr_1"), inbox=fixture.inbox, tables=["ledger"])


def test_a_row_that_is_added_again_is_found_with_its_table() -> None:
    def handler(event: DomainEvent, connection: Any) -> None:
        connection.execute("INSERT INTO notes (transfer) VALUES (?)", (event.key["transferId"],))

    with pytest.raises(AssertionError, match="more or fewer rows than one in notes"):
        assert_idempotent(handler, event("tr_1"), tables=[NOTES, "notes"])


def test_looking_before_writing_is_not_enough(fixture: InboxFixture) -> None:
    if "sqlite" in fixture.dsn:
        pytest.skip("one writer at a time: what was looked at stays true")
    fixture.rows("CREATE TABLE notes (transfer text)")
    looked, runs = threading.Barrier(2, timeout=120), list[DomainEvent]()

    def handler(event: DomainEvent, connection: Any) -> None:
        found = connection.execute("SELECT * FROM notes").fetchall()
        runs.append(event)
        if len(runs) in (2, 3):
            # The first run is alone; the next two are at once.
            looked.wait()
        if not found:
            connection.execute("INSERT INTO notes VALUES ('tr_1')")

    with pytest.raises(AssertionError, match="notes"):
        assert_idempotent(handler, event("tr_1"), inbox=fixture.inbox, tables=["notes"])


def test_a_second_run_that_raises_is_no_second_delivery_survived(fixture: InboxFixture) -> None:
    def handler(event: DomainEvent, connection: Any) -> None:
        connection.execute("INSERT INTO ledger (account, times) VALUES ('tr_1', 1)")

    with pytest.raises(AssertionError, match=r"raised (IntegrityError|UniqueViolation)"):
        assert_idempotent(handler, event("tr_1"), inbox=fixture.inbox, tables=["ledger"])
