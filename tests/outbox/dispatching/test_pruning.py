"""A dispatcher deletes what was sent or skipped long ago, a little at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.waiting import eventually

from postroad.outbox import Outbox

OLD = "2000-01-01T00:00:00.000Z"


def add_rows(fixture: OutboxFixture, count: int, state: str, updated: str | None = OLD) -> None:
    with fixture.connection() as connection:
        key = {"transferId": state}
        fixture.outbox.add_many(connection, [an_event(type=f"t.{state}", key=key) for _ in range(count)])
        connection.commit()
    fixture.run("UPDATE outbox SET state = ? WHERE eventtype = ?", state, f"t.{state}")
    if updated is not None:
        fixture.run("UPDATE outbox SET updatedat = ? WHERE eventtype = ?", updated, f"t.{state}")


def test_a_running_dispatcher_deletes_all_that_is_done_and_older_than_a_week(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    add_rows(fixture, 1_200, "SENT")
    add_rows(fixture, 3, "SKIPPED")
    add_rows(fixture, 2, "FAILED")
    add_rows(fixture, 2, "PARKED")
    recent = fixture.add()
    dispatcher = dispatcher_of(fixture.outbox, recorder)

    dispatcher.start()

    eventually(lambda: fixture.count() == 5 and recorder.published)
    assert fixture.run("SELECT state, count(*) FROM outbox GROUP BY state ORDER BY state") == [
        ("FAILED", 2),
        ("PARKED", 2),
        ("SENT", 1),
    ]
    assert fixture.outbox.get(recent.event_id) is not None


def test_one_pass_deletes_one_batch(fixture: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder) -> None:
    add_rows(fixture, 600, "SENT")

    dispatcher_of(fixture.outbox, recorder).run_once()

    assert fixture.count() == 100


def test_without_keep_sent_everything_is_kept(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    add_rows(fixture, 3, "SENT")

    dispatcher_of(fixture.outbox, recorder, replace(QUICK, keep_sent=None)).drain()

    assert fixture.count() == 3


def test_rows_are_kept_for_as_long_as_they_are_wanted(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    add_rows(fixture, 3, "SENT", updated=None)
    dispatcher_of(fixture.outbox, recorder, replace(QUICK, keep_sent=timedelta(hours=1))).drain()
    assert fixture.count() == 3

    dispatcher_of(fixture.outbox, recorder, replace(QUICK, keep_sent=timedelta(0))).drain()

    assert fixture.count() == 0


def test_a_row_that_somebody_reads_for_update_holds_up_no_dispatcher(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    add_rows(on_postgres, 3, "SENT")
    with on_postgres.connection() as reader:
        reader.execute("SELECT 1 FROM outbox WHERE seq = 1 FOR UPDATE")

        dispatcher_of(on_postgres.outbox, recorder).drain()

        assert on_postgres.run("SELECT seq FROM outbox") == [(1,)]


def test_a_dispatcher_without_the_right_to_delete_goes_on_without_pruning(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    add_rows(on_postgres, 3, "SENT")
    on_postgres.add()
    with psycopg.connect(on_postgres.dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS dispatch_only")
        connection.execute("CREATE ROLE dispatch_only")
        connection.execute(on_postgres.outbox.grants("dispatcher", to="dispatch_only").encode())
        connection.execute("REVOKE DELETE ON outbox FROM dispatch_only")
    separator = "&" if "?" in on_postgres.dsn else "?"
    outbox = Outbox.postgres(f"{on_postgres.dsn}{separator}options=-crole%3Ddispatch_only")

    report = dispatcher_of(outbox, recorder).drain()

    outbox.close()
    with psycopg.connect(on_postgres.dsn, autocommit=True) as connection:
        connection.execute("DROP OWNED BY dispatch_only")
        connection.execute("DROP ROLE dispatch_only")
    assert report.sent == 1
    assert on_postgres.count() == 4
    assert "outbox_prune_refused" in caplog.text
