"""A row is held back while somebody else releases its key: it is never left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder, failing
from tests.outbox.dispatching.test_held_keys import add_keys, hold_back
from tests.outbox.fixtures import OutboxFixture
from tests.waiting import eventually

from postroad import OutgoingMessage
from postroad.errors import ConfigurationError, RowRejected
from postroad.outbox import Outbox
from postroad.outbox.dispatching import postgres_statements as sql
from postroad.outbox.dispatching.postgres import PostgresDispatchStore

NEVER = RowRejected("never")
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
_FIRST_IS_DUE = "UPDATE outbox SET next_attempt = now() + interval '{}' WHERE seq = 1"


@contextmanager
def being_held(fixture: OutboxFixture, *, seq: int, behind: int, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Hold one row back behind another; something else begins before that is committed, and waits for it."""
    ids = dict(fixture.run("SELECT seq, id FROM outbox"))
    hold = fixture.outbox.tables.with_phrases(sql.PHRASES)(sql.HOLD)
    with fixture.connection() as walker:
        walker.execute(hold, {"ids": [ids[seq]], "held_by": [ids[behind]]})
        other = threading.Thread(target=meanwhile)
        other.start()
        eventually(lambda: fixture.run(_WAITING))
        walker.commit()
    other.join()
    yield


def a_key_with_a_retry(fixture: OutboxFixture) -> None:
    """Three rows: the first waits for its retry, the second behind it, and nobody has looked at the third yet."""
    add_keys(fixture, 1, rows=3)
    fixture.run("UPDATE outbox SET held = 1 WHERE seq = 1")
    fixture.run("UPDATE outbox SET held = 2 WHERE seq = 2")


def test_a_row_is_released_that_is_being_held_behind_one_that_is_released(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    a_key_with_a_retry(on_postgres)

    with being_held(
        on_postgres,
        seq=3,
        behind=2,
        meanwhile=lambda: on_postgres.run("UPDATE outbox SET state = 'SENT' WHERE seq = 1"),
    ):
        dispatcher_of(on_postgres.outbox, recorder).drain()

    assert recorder.numbers("k0") == [1, 2]


def test_a_release_that_cannot_see_what_is_being_held_fails_and_can_be_repeated(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    a_key_with_a_retry(on_postgres)
    failures: list[Exception] = []

    def release() -> None:
        with psycopg.connect(on_postgres.dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            try:
                connection.execute("UPDATE outbox SET state = 'SENT' WHERE seq = 1")
            except psycopg.errors.SerializationFailure as error:
                failures.append(error)
                connection.rollback()
                connection.execute("UPDATE outbox SET state = 'SENT' WHERE seq = 1")

    with being_held(on_postgres, seq=3, behind=2, meanwhile=release):
        dispatcher_of(on_postgres.outbox, recorder).drain()

    assert len(failures) == 1
    assert recorder.numbers("k0") == [1, 2]


def test_a_redrive_brings_back_a_row_that_is_being_parked(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    parking = replace(QUICK, policy="park")
    events = [on_postgres.add(key={"transferId": "k0"}, payload={"n": n}) for n in range(3)]
    poisoned = dispatcher_of(on_postgres.outbox, Recorder(fail=failing(0, error=NEVER)), parking)
    poisoned.drain()
    on_postgres.add(key={"transferId": "k0"}, payload={"n": 3})
    second = str(events[1].event_id)

    with being_held(
        on_postgres,
        seq=4,
        behind=1,
        meanwhile=lambda: on_postgres.outbox.redrive(second, by="ops", reason="repaired"),
    ):
        dispatcher_of(on_postgres.outbox, recorder, parking).drain()

    assert recorder.numbers("k0") == [0, 1, 2, 3]


def test_a_row_is_not_held_behind_one_that_has_failed_since_where_keys_go_on(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipping = replace(QUICK, policy="skip")
    on_postgres.add(key={"transferId": "k0"}, payload={"n": 0})
    errors: Iterator[Exception] = iter([TimeoutError("no answer"), NEVER])

    def fail(_: OutgoingMessage) -> Exception | None:
        return next(errors)

    failer = dispatcher_of(on_postgres.outbox, Recorder(fail=fail), skipping)
    failer.run_once()
    on_postgres.add(key={"transferId": "k0"}, payload={"n": 1})
    change = PostgresDispatchStore._change
    late = iter([True])

    def fail_first(store: PostgresDispatchStore, statement: str, **values: Any) -> int:
        if statement is sql.HOLD and next(late, False):
            on_postgres.run(_FIRST_IS_DUE.format("0"))
            eventually(lambda: failer.run_once().failed)
        return change(store, statement, **values)

    monkeypatch.setattr(PostgresDispatchStore, "_change", fail_first)
    dispatcher = dispatcher_of(on_postgres.outbox, recorder, skipping)
    on_postgres.run(_FIRST_IS_DUE.format("1 hour"))

    dispatcher.run_once()
    dispatcher.drain()

    assert next(late, None) is None
    assert recorder.numbers("k0") == [1]


def test_a_dispatcher_of_the_old_policy_holds_nothing_that_the_new_one_lets_go(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.add(key={"transferId": "k0"}, payload={"n": 0})
    old = dispatcher_of(fixture.outbox, Recorder(fail=failing(0, error=NEVER)))
    old.run_once()
    old._store.open()
    skipping = replace(QUICK, policy="skip")
    dispatcher_of(fixture.outbox, Recorder(), skipping).run_once()
    fixture.add(key={"transferId": "k0"}, payload={"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(old._store, "open", lambda: None)  # as one that has run all the time
        old.run_once()

    dispatcher_of(fixture.outbox, recorder, skipping).drain()

    assert recorder.numbers("k0") == [1]


def test_a_row_is_not_held_behind_one_that_somebody_is_taking_out_of_the_way(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder
) -> None:
    add_keys(on_postgres, 1)
    hold_back(on_postgres, state="FAILED")
    dispatcher = dispatcher_of(on_postgres.outbox, recorder)
    dispatcher.run_once()
    with on_postgres.connection() as operator:
        operator.execute("UPDATE outbox SET state = 'PENDING' WHERE state = 'FAILED'")
        dispatcher.run_once()
        dispatcher.run_once()
        operator.commit()

    dispatcher.drain()

    assert recorder.numbers("k0") == [0, 1]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_server_whose_transactions_do_not_see_what_others_commit_is_refused(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, level: str
) -> None:
    on_postgres.add()
    name = on_postgres.run("SELECT current_database()")[0][0]
    on_postgres.run(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")

    with pytest.raises(ConfigurationError, match=f"{level}.*read committed"):
        dispatcher_of(Outbox.postgres(on_postgres.dsn), recorder).run_once()
