"""A PostgreSQL that restarts, cuts, refuses and waits: what is committed is published in order, effects happen once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from tests.faults.commit_cutter import cutting_commits
from tests.inbox.fixtures import InboxFixture, inbox_fixture
from tests.inbox.mail import DEAD, FIFO, drained, event, held, posting, send
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.processes import Dispatchers, check_order, crashing_postgres, stopped
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import OutboxFixture, an_event, postgres_fixture
from tests.waiting import eventually

import postroad
from postroad import Queue
from postroad.errors import DuplicateEvent, Unavailable
from postroad.inbox import Consumer, DomainEvent
from postroad.outbox import Outbox

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")
RESTARTS = 3
SHORTEST, LONGEST = 3.0, 10.0
IDLE_SECONDS = 30.0
KEYS = 4


@pytest.fixture
def ledger(postgres_dsn: str) -> Iterator[InboxFixture]:
    with inbox_fixture(postgres_dsn) as made:
        yield made


@pytest.fixture
def queue() -> Iterator[Queue]:
    with postroad.connect("memory://") as backend:
        backend.create_queue(DEAD)
        yield backend.create_queue(FIFO)


def _order(fixture: OutboxFixture, number: int) -> bool:
    """Record an order and its event in one transaction; return whether the commit was acknowledged."""
    given = an_event(key={"transferId": f"tr_{number % KEYS}"}, payload={"n": number})
    try:
        with psycopg.connect(fixture.dsn) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (number, str(given.event_id)))
            fixture.outbox.add(connection, given)
    except (psycopg.OperationalError, postroad.PostroadError):
        return False
    return True


def test_restarts_every_few_seconds_lose_nothing_and_keep_the_order_of_keys(tmp_path: Path) -> None:
    chance, stop, acknowledged = random.Random(4), threading.Event(), set[int]()

    def produce(fixture: OutboxFixture) -> None:
        number = 0
        while not stop.is_set():
            if _order(fixture, number):
                acknowledged.add(number)
            number += 1
            stop.wait(0.01)

    with crashing_postgres(tmp_path) as (dsn, restart):
        fixture = postgres_fixture(dsn)
        fixture.run("CREATE TABLE orders (number int, event_id text)")
        dispatchers = Dispatchers(dsn, tmp_path, lease=2.0, poll=0.1, backoff=[0.05])
        process = dispatchers.start()
        producer = threading.Thread(target=produce, args=(fixture,))
        producer.start()
        try:
            for _ in range(RESTARTS):
                time.sleep(chance.uniform(SHORTEST, LONGEST))
                before = len(acknowledged)
                restart()
                eventually(lambda before=before: len(acknowledged) > before)  # type: ignore[misc]  # the default binds it
        finally:
            stop.set()
            producer.join()
        try:
            eventually(lambda: fixture.run("SELECT count(*) FROM outbox WHERE state <> 'SENT'") == [(0,)])
            stopped(process)
        finally:
            dispatchers.end()
        orders = fixture.run("SELECT number, event_id FROM orders")
        rows = fixture.run("SELECT event_id::text FROM outbox")
        fixture.outbox.close()

    published = dispatchers.published()
    check_order(published)
    assert acknowledged <= {number for number, _ in orders}
    assert {(event_id,) for _, event_id in orders} == set(rows)
    assert {each.event_id for each in published} == {event_id for (event_id,) in rows}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_producer_whose_commit_is_unknown_repeats_it_under_the_same_id_and_has_one_row(
    on_postgres: OutboxFixture, moment: Moment
) -> None:
    given = an_event()

    def attempt(dsn: str) -> None:
        with psycopg.connect(dsn) as connection, suppress(DuplicateEvent):
            on_postgres.outbox.add(connection, given)

    with cutting_commits(on_postgres.dsn, moment) as cutter:
        cutter.left = 1
        with pytest.raises(psycopg.OperationalError):
            attempt(cutter.dsn)
        committed = on_postgres.count()
        attempt(cutter.dsn)

    assert committed == (moment == "after")
    assert on_postgres.run("SELECT event_id::text FROM outbox") == [(str(given.event_id),)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_dispatcher_whose_connections_are_cut_at_a_commit_publishes_everything_in_order(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, moment: Moment
) -> None:
    for number in range(20):
        on_postgres.add(payload={"n": number})
    # It commits its statements one by one.
    with cutting_commits(on_postgres.dsn, moment, marker=b"UPDATE") as cutter:
        outbox = Outbox.postgres(cutter.dsn)
        # What was leased by a claim whose answer never came is free again after this.
        dispatcher = dispatcher_of(outbox, recorder, replace(QUICK, lease=1.0))
        dispatcher.start()
        eventually(lambda: on_postgres.outbox.status().sent == 20)
        cutter.left = 3
        for number in range(20, 40):
            on_postgres.add(payload={"n": number})

        eventually(lambda: on_postgres.outbox.status().sent == 40)
        dispatcher.stop()
        cuts = cutter.cut
        outbox.close()

    assert cuts > 0
    assert list(dict.fromkeys(recorder.numbers())) == list(range(40))
    assert len({each.event_id for each in recorder.events()}) == 40


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_consumer_whose_commit_is_unknown_makes_its_effect_once(
    ledger: InboxFixture, queue: Queue, moment: Moment
) -> None:
    send(queue, *(event("tr_1", n=number) for number in range(3)))
    with cutting_commits(ledger.dsn, moment) as cutter:
        through = InboxFixture(cutter.dsn)
        consumer = Consumer(queue, posting(ledger), name="ledger", inbox=through.inbox)
        cutter.left = 2
        drained(consumer, queue)
        cuts = cutter.cut
        through.inbox.close()

    assert cuts == 2
    assert ledger.times("tr_1") == 3


def test_a_connection_that_is_cut_at_its_begin_is_unavailable_and_a_new_one_is_made_the_next_time(
    ledger: InboxFixture,
) -> None:
    with cutting_commits(ledger.dsn, "before", marker=b"BEGIN") as cutter:
        through = InboxFixture(cutter.dsn)
        cutter.left = 1
        with pytest.raises(Unavailable, match="PostgreSQL"):
            through.inbox.prune()
        pruned = through.inbox.prune()
        through.inbox.close()

    assert (cutter.cut, pruned) == (1, 0)


def test_a_backend_that_is_killed_in_the_middle_of_a_handler_undoes_the_effect_and_it_is_made_once(
    ledger: InboxFixture, queue: Queue
) -> None:
    kills: list[DomainEvent] = []

    def handle(given: DomainEvent, connection: Any) -> None:
        ledger.post(connection, given.key["transferId"])
        if len(kills) < 2:
            kills.append(given)
            [pid] = connection.execute("SELECT pg_backend_pid()").fetchone()
            ledger.rows(f"SELECT pg_terminate_backend({pid}, 5000)")

    send(queue, event("tr_1"), event("tr_2"))
    consumer = Consumer(queue, handle, name="ledger", inbox=ledger.inbox)
    drained(consumer, queue)

    assert len(kills) == 2
    assert (ledger.times("tr_1"), ledger.times("tr_2")) == (1, 1)


def test_handlers_that_deadlock_are_repeated_and_both_effects_are_made_once(ledger: InboxFixture, queue: Queue) -> None:
    ledger.rows("INSERT INTO ledger VALUES ('a', 0), ('b', 0)")
    both, calls = threading.Barrier(2), []

    def handle(given: DomainEvent, connection: Any) -> None:
        first, second = ("a", "b") if given.key["transferId"] == "tr_1" else ("b", "a")
        calls.append(first)
        ledger.post(connection, first)
        with suppress(threading.BrokenBarrierError):
            # Only the first two calls meet; who comes again comes alone.
            both.wait(20 if len(calls) <= 2 else 0)
        ledger.post(connection, second)

    send(queue, event("tr_1"), event("tr_2"))
    consumer = Consumer(queue, handle, name="ledger", inbox=ledger.inbox, concurrency=2)
    consumer.start()
    eventually(lambda: held(queue) == 0)
    consumer.stop()

    assert len(calls) == 3
    assert (ledger.times("a"), ledger.times("b")) == (2, 2)


def test_a_server_that_becomes_read_only_is_waited_for_and_nothing_is_lost(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher = dispatcher_of(on_postgres.outbox, recorder)
    dispatcher.start()
    on_postgres.add(payload={"n": 0})
    eventually(lambda: on_postgres.outbox.status().sent == 1)
    _set_read_only(on_postgres.dsn, "on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        on_postgres.run("CREATE TABLE never (n int)")
    eventually(lambda: not dispatcher.ready)
    _set_read_only(on_postgres.dsn, "off")
    for number in range(1, 10):
        on_postgres.add(payload={"n": number})

    eventually(lambda: on_postgres.outbox.status().sent == 10)

    assert recorder.numbers() == list(range(10))


def _set_read_only(dsn: str, value: str) -> None:
    """Change what new sessions may do, and end the others, as a switch to another server does."""
    with psycopg.connect(dsn, autocommit=True, options="-cdefault_transaction_read_only=off") as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            (name,),
        )


def test_a_transaction_that_is_idle_for_thirty_seconds_holds_back_its_own_key_only(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher_of(on_postgres.outbox, recorder).start()
    number, began = 0, time.monotonic()
    with on_postgres.connection() as connection:
        on_postgres.outbox.add(connection, an_event(payload={"n": 0}))
        while time.monotonic() - began < IDLE_SECONDS:
            on_postgres.add(key={"transferId": "tr_2"}, payload={"n": number})
            number += 1
            eventually(lambda number=number: len(recorder.numbers("tr_2")) == number, every=0.2)  # type: ignore[misc]  # the default binds it
        waiting = recorder.numbers("tr_1")
        connection.commit()

    eventually(lambda: recorder.numbers("tr_1") == [0])
    assert waiting == []
    assert recorder.numbers("tr_2") == list(range(number))
