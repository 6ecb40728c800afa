"""`first_time`: once for each consumer and event, in the caller's own transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.inbox.fixtures import InboxFixture
from tests.inbox.mail import conflicts

from postroad.errors import InvalidInput, InvalidMessage, NotInTransaction, SchemaMismatch
from postroad.events import uuid7
from postroad.inbox import Inbox

EVENT = UUID("0190b5b8-0000-7000-8000-000000000001")


def test_an_event_is_new_once(inbox: Inbox) -> None:
    with inbox.transaction() as connection:
        first = inbox.first_time(connection, "ledger", EVENT)
        again = inbox.first_time(connection, "ledger", str(EVENT))
    with inbox.transaction() as connection:
        later = inbox.first_time(connection, "ledger", EVENT)

    assert (first, again, later) == (True, False, False)


def test_two_consumers_on_one_database_each_see_an_event_once(inbox: Inbox) -> None:
    with inbox.transaction() as connection:
        assert inbox.first_time(connection, "ledger", EVENT)
        assert inbox.first_time(connection, "projections", EVENT)
        assert not inbox.first_time(connection, "ledger", EVENT)


def test_a_rollback_makes_it_the_first_time_again(fixture: InboxFixture) -> None:
    with pytest.raises(ZeroDivisionError), fixture.inbox.transaction() as connection:
        fixture.inbox.first_time(connection, "ledger", EVENT)
        fixture.post(connection, "a")
        raise ZeroDivisionError

    with fixture.inbox.transaction() as connection:
        assert fixture.inbox.first_time(connection, "ledger", EVENT)
    assert fixture.times("a") == 0


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_copy_waits_for_the_outcome_of_the_first(
    fixture: InboxFixture, threads: Callable[..., Any], outcome: str
) -> None:
    waiting = threading.Event()

    def copy() -> bool:
        with closing(fixture.connect()) as second:
            waiting.set()
            found = fixture.inbox.first_time(second, "ledger", EVENT)
            second.commit()
            return found

    with closing(fixture.connect()) as first:
        fixture.inbox.first_time(first, "ledger", EVENT)
        asked = threads(copy)
        waiting.wait(120)
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.3)
        getattr(first, outcome)()

    assert asked.result(timeout=120) is (outcome == "rollback")


def test_the_row_has_the_columns_that_are_written_down(fixture: InboxFixture) -> None:
    with fixture.inbox.transaction() as connection:
        fixture.inbox.first_time(connection, "ledger", EVENT, fingerprint="abc")

    columns = "consumer, eventid, status, fingerprint, startedat, processedat IS NULL, attempt"
    ((consumer, event_id, status, fingerprint, started, unprocessed, attempt),) = fixture.rows(
        f"SELECT {columns} FROM inbox"
    )
    assert (consumer, event_id, status, fingerprint, started) == ("ledger", str(EVENT), "done", "abc", None)
    assert (bool(unprocessed), attempt) == (False, 1)


def test_a_known_id_with_another_content_is_counted_and_logged(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    before = conflicts("audited")
    with inbox.transaction() as connection:
        inbox.first_time(connection, "audited", EVENT, fingerprint="one")
        same = inbox.first_time(connection, "audited", EVENT, fingerprint="one")
        unsaid = inbox.first_time(connection, "audited", EVENT)
        counted_so_far = conflicts("audited") - before
        other = inbox.first_time(connection, "audited", EVENT, fingerprint="two")

    assert (same, unsaid, other) == (False, False, False)
    assert (counted_so_far, conflicts("audited") - before) == (0, 1)
    assert "inbox_conflict" in caplog.text


def test_a_connection_that_commits_by_itself_is_refused(fixture: InboxFixture) -> None:
    with closing(fixture.connect()) as connection:
        if isinstance(connection, psycopg.Connection):
            connection.autocommit = True
        else:
            connection.isolation_level = None

        with pytest.raises(NotInTransaction):
            fixture.inbox.first_time(connection, "ledger", EVENT)

    assert fixture.rows("SELECT * FROM inbox") == []


@pytest.mark.parametrize("thing", [None, object(), "postgresql://"])
def test_what_is_no_connection_is_refused_with_the_accepted_kinds(inbox: Inbox, thing: object) -> None:
    with pytest.raises(TypeError, match="psycopg Connection, SQLAlchemy Connection or Session, Django"):
        inbox.first_time(thing, "ledger", EVENT)


def test_a_connection_to_the_other_database_is_refused(inbox: Inbox, postgres_dsn: str) -> None:
    with Inbox.sqlite("unused.db") as other, psycopg.connect(postgres_dsn) as connection:
        with pytest.raises(TypeError, match="to postgresql, but the inbox is on sqlite"):
            other.first_time(connection, "ledger", EVENT)


@pytest.mark.parametrize("name", ["", "a" * 201, "a\nb", None])
def test_a_consumer_without_a_proper_name_is_refused(inbox: Inbox, name: str) -> None:
    with inbox.transaction() as connection, pytest.raises(InvalidInput, match="consumer"):
        inbox.first_time(connection, name, EVENT)


def test_an_event_id_that_is_none_is_refused_and_the_transaction_goes_on(inbox: Inbox) -> None:
    with inbox.transaction() as connection:
        with pytest.raises(InvalidMessage, match="event_id"):
            inbox.first_time(connection, "ledger", "tr_1")
        assert inbox.first_time(connection, "ledger", uuid7())


def test_without_tables_it_names_the_command_that_makes_them(tmp_path: Path, postgres_dsn: str) -> None:
    (tmp_path / "empty.db").touch()
    for inbox in (Inbox.sqlite(tmp_path / "empty.db"), Inbox.postgres(postgres_dsn)):
        with inbox, pytest.raises(SchemaMismatch) as refused, inbox.transaction() as connection:
            inbox.first_time(connection, "ledger", EVENT)
        assert "postroad inbox init" in refused.value.remedy


def test_what_a_caller_s_own_statement_raises_stays_what_it_was(fixture: InboxFixture) -> None:
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        with fixture.inbox.transaction() as connection:
            connection.execute("SELECT * FROM nowhere")
