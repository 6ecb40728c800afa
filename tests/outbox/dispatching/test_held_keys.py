"""Keys that cannot go now stand in nobody's way, and go on as soon as they can, whoever made that so."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder, failing, number_of
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.waiting import eventually

from postroad import OutgoingMessage
from postroad.errors import RowRejected
from postroad.outbox import OutboxDispatcher
from postroad.outbox.dispatching import postgres_statements as sql

FAR = "2999-01-01T00:00:00.000Z"
PAST = "2000-01-01T00:00:00.000Z"
CLAIM = {"limit": 50, "leaving": 0, "tenant": "", "lane": "", "deep": True, "skip": False, "owner": "x", "lease": 30.0}
HELD = "SELECT count(*) FROM outbox WHERE held = 0 AND state NOT IN ('SENT', 'SKIPPED')"


def add_keys(fixture: OutboxFixture, count: int, rows: int = 2) -> None:
    with fixture.connection() as connection:
        keys = [{"transferId": f"k{key}"} for key in range(count)]
        fixture.outbox.add_many(connection, [an_event(key=key, payload={"n": n}) for n in range(rows) for key in keys])
        connection.commit()


def hold_back(fixture: OutboxFixture, **columns: object) -> None:
    """Change the first row of each key by plain SQL."""
    for column, value in columns.items():
        fixture.run(
            f"UPDATE outbox SET {column} = ? WHERE seq IN (SELECT min(seq) FROM outbox GROUP BY lane)",
            value,
        )


def settle_down(fixture: OutboxFixture, dispatcher: OutboxDispatcher) -> None:
    """Look until no look finds anything that it did not know."""
    while fixture.run(HELD) != [(0,)]:
        dispatcher.run_once()


def cost_of_a_look(fixture: OutboxFixture, dispatcher: OutboxDispatcher, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pages that PostgreSQL reads, or statements that SQLite is asked, for one look that finds nothing."""
    if fixture.on_postgres:
        text = fixture.outbox.tables.with_phrases(sql.PHRASES)(sql.CLAIM)
        with psycopg.connect(fixture.dsn, autocommit=True) as connection:
            connection.execute("VACUUM outbox")
            plan = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", CLAIM).fetchone()
        assert plan is not None
        return int(plan[0][0]["Plan"]["Shared Hit Blocks"] + plan[0][0]["Plan"]["Shared Read Blocks"])
    asked: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(asked.append)
        return connection

    fixture.outbox.close()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", traced)
        dispatcher.run_once()
    fixture.outbox.close()
    return len(asked)


@pytest.mark.parametrize(
    "columns", [{"state": "FAILED"}, {"state": "MISSPELT"}, {"next_attempt": FAR}, {"next_attempt": "infinity"}]
)
def test_a_look_costs_the_same_however_many_keys_are_held_back(
    fixture: OutboxFixture,
    dispatcher_of: MakeDispatcher,
    recorder: Recorder,
    columns: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher = dispatcher_of(fixture.outbox, recorder)
    dispatcher.run_once()
    before = cost_of_a_look(fixture, dispatcher, monkeypatch)
    add_keys(fixture, 1_000)
    hold_back(fixture, **columns)

    settle_down(fixture, dispatcher)

    # VACUUM keeps dead rows while an older snapshot is open in the database, such as that of an automatic ANALYZE.
    eventually(lambda: cost_of_a_look(fixture, dispatcher, monkeypatch) <= before + 10, every=0.1)
    assert recorder.published == []
    assert len(fixture.outbox.keys(limit=2_000)) == 1_000


def test_parked_keys_cost_nothing_and_park_what_comes_later(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    add_keys(fixture, 30)
    poison = Recorder(fail=failing(0, error=RowRejected("never")))
    dispatcher = dispatcher_of(fixture.outbox, poison, replace(QUICK, policy="park"))
    dispatcher.drain()
    add_keys(fixture, 30)

    settle_down(fixture, dispatcher)

    assert fixture.run("SELECT state, count(*) FROM outbox GROUP BY state ORDER BY state") == [
        ("FAILED", 30),
        ("PARKED", 90),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox SET state = 'PENDING' WHERE state = 'FAILED'",
        "UPDATE outbox SET state = 'SKIPPED' WHERE state = 'FAILED'",
        "DELETE FROM outbox WHERE state = 'FAILED'",
    ],
)
def test_plain_sql_that_takes_a_failed_row_out_of_the_way_opens_its_key(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, statement: str
) -> None:
    add_keys(fixture, 3)
    hold_back(fixture, state="FAILED")
    settle_down(fixture, dispatcher_of(fixture.outbox, Recorder()))
    recorder = Recorder()

    fixture.run(statement)
    dispatcher_of(fixture.outbox, recorder).drain()

    expected = [0, 1] if "PENDING" in statement else [1]
    assert [recorder.numbers(f"k{key}") for key in range(3)] == [expected] * 3


def test_plain_sql_that_makes_a_waiting_row_due_is_noticed(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    add_keys(fixture, 3)
    hold_back(fixture, next_attempt=FAR)
    dispatcher = dispatcher_of(fixture.outbox, recorder)
    settle_down(fixture, dispatcher)

    hold_back(fixture, next_attempt=PAST)
    dispatcher.drain()

    assert [recorder.numbers(f"k{key}") for key in range(3)] == [[0, 1]] * 3


def test_a_long_key_goes_on_in_order_after_its_first_row_was_redriven(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    add_keys(fixture, 1, rows=2_500)
    hold_back(fixture, state="FAILED")
    settle_down(fixture, dispatcher_of(fixture.outbox, Recorder()))
    fixture.outbox.redrive(key="k0", by="ops", reason="repaired")
    recorder = Recorder()

    report = dispatcher_of(fixture.outbox, recorder, replace(QUICK, batch=500)).drain(timeout=120)

    assert report.sent == 2_500
    assert recorder.numbers("k0") == list(range(2_500))


def test_a_key_whose_retry_went_through_goes_on_in_order(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    add_keys(fixture, 20, rows=5)
    tried: set[tuple[str | None, int]] = set()

    def fail_once(message: OutgoingMessage) -> Exception | None:
        each = (message.group, number_of(message))
        if each in tried:
            return None
        tried.add(each)
        return TimeoutError("no answer")

    recorder = Recorder(fail=fail_once)
    dispatcher = dispatcher_of(fixture.outbox, recorder)
    dispatcher.start()

    eventually(lambda: len(recorder.published) == 100)
    assert [recorder.numbers(f"k{key}") for key in range(20)] == [[0, 1, 2, 3, 4]] * 20


def test_another_policy_is_applied_to_what_was_held_back_under_the_last_one(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    add_keys(fixture, 3)
    poison = failing(0, error=RowRejected("never"))
    blocking = dispatcher_of(fixture.outbox, Recorder(fail=poison))
    blocking.drain()
    settle_down(fixture, blocking)
    recorder = Recorder()

    dispatcher_of(fixture.outbox, recorder, replace(QUICK, policy="skip")).drain()

    assert [recorder.numbers(f"k{key}") for key in range(3)] == [[1]] * 3


def test_rows_that_are_always_due_again_leave_room_for_others(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    add_keys(fixture, 40, rows=1)
    recorder = Recorder(fail=failing(0))
    config = replace(QUICK, backoff=(0,), batch=2, retry_max=1_000)
    dispatcher = dispatcher_of(fixture.outbox, recorder, config)
    for _ in range(40):
        dispatcher.run_once()
    fixture.add(key={"transferId": "fresh"}, payload={"n": 1})

    while not recorder.published:
        dispatcher.run_once()

    assert len(recorder.calls) < 40 * 40


def test_statistics_of_a_quiet_moment_do_not_change_how_held_rows_are_found(on_postgres: OutboxFixture) -> None:
    on_postgres.run("ANALYZE outbox")
    add_keys(on_postgres, 1_000)
    text = on_postgres.outbox.tables.with_phrases(sql.PHRASES)(sql.CLAIM)

    with psycopg.connect(on_postgres.dsn) as connection:
        plan = json.dumps(connection.execute(f"EXPLAIN (FORMAT JSON) {text}", CLAIM).fetchall())

    assert "outbox_open" in plan
    assert "outbox_waiting" in plan
