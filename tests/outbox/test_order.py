"""Within a key the order of numbers is the order of commits, whoever writes and by whatever means."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.waiting import eventually

from postroad.errors import DeadlockDetected
from postroad.outbox import Outbox

INSERT = "INSERT INTO outbox (id, eventtype, payload) VALUES (%s, 't', %s)"


def is_waiting(fixture: OutboxFixture) -> bool:
    """Whether somebody waits for an advisory lock."""
    return bool(fixture.run("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))


def test_a_second_writer_of_a_key_waits_for_the_first_and_other_keys_do_not(on_postgres: OutboxFixture) -> None:
    outbox, first, second, other = on_postgres.outbox, an_event(), an_event(), an_event(key={"transferId": "other"})
    with psycopg.connect(on_postgres.dsn) as early, psycopg.connect(on_postgres.dsn) as late:
        outbox.add(early, first)
        on_postgres.add(event_id=other.event_id, key=other.key)

        with ThreadPoolExecutor(1) as threads:
            adding = threads.submit(outbox.add, late, second)
            eventually(lambda: is_waiting(on_postgres))
            assert not adding.done()
            early.commit()
            adding.result(120)
        late.commit()

    rows = [outbox.get(each.event_id) for each in (first, second)]
    assert [row.seq for row in rows if row] == sorted(row.seq for row in rows if row)


def test_plain_sql_waits_as_well(on_postgres: OutboxFixture) -> None:
    with psycopg.connect(on_postgres.dsn) as early, psycopg.connect(on_postgres.dsn) as late:
        early.execute(INSERT, [uuid4(), '{"key": {"k": "1"}}'])

        with ThreadPoolExecutor(1) as threads:
            adding = threads.submit(late.execute, INSERT, [uuid4(), '{"key": {"k": "1"}}'])
            eventually(lambda: is_waiting(on_postgres))
            early.commit()
            adding.result(120)
        late.commit()

    assert on_postgres.run("SELECT count(DISTINCT seq) FROM outbox") == [(2,)]


def test_numbers_are_in_the_order_of_commits_under_many_writers(on_postgres: OutboxFixture) -> None:
    committed: list[int] = []
    lock = threading.Lock()

    def write(_: int) -> None:
        with psycopg.connect(on_postgres.dsn) as connection:
            for _ in range(10):
                # Another write first: the transaction's own number then says nothing about the order.
                connection.execute("SELECT txid_current()")
                event_id = on_postgres.outbox.add(connection, an_event())
                with lock:
                    # Nobody else is between here and the commit, because all write the same key.
                    found = connection.execute("SELECT seq FROM outbox WHERE event_id = %s", [str(event_id)])
                    committed.append((found.fetchone() or (0,))[0])
                connection.commit()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))

    assert len(committed) == 40
    assert committed == sorted(committed)


def test_adding_many_in_crossing_order_does_not_deadlock(on_postgres: OutboxFixture) -> None:
    keys = [{"k": str(n)} for n in range(50)]

    def write(number: int) -> None:
        with psycopg.connect(on_postgres.dsn) as connection:
            for _ in range(10):
                ordered = keys if number % 2 else keys[::-1]
                on_postgres.outbox.add_many(connection, [an_event(key=key) for key in ordered])
                connection.commit()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))

    assert on_postgres.count() == 4 * 10 * 50


def test_adding_many_takes_its_slots_in_their_order(on_postgres: OutboxFixture) -> None:
    [(middle,)] = on_postgres.run(
        "SELECT n::text FROM generate_series(0, 49) AS n ORDER BY hashtext(':' || n) & 2047 LIMIT 1 OFFSET 25"
    )
    locks = "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND pid = ? AND granted = ?"
    with psycopg.connect(on_postgres.dsn) as early, psycopg.connect(on_postgres.dsn) as late:
        pid = late.info.backend_pid
        on_postgres.outbox.add(early, an_event(key={"k": middle}))

        with ThreadPoolExecutor(1) as threads:
            adding = threads.submit(on_postgres.outbox.add_many, late, [an_event(key={"k": str(n)}) for n in range(50)])
            eventually(lambda: is_waiting(on_postgres))
            held, [(wanted,)] = on_postgres.run(locks, pid, True), on_postgres.run(locks, pid, False)
            early.rollback()
            adding.result(120)
        late.rollback()

    assert len(held) > 10
    assert all(slot < wanted for (slot,) in held)


def test_a_transaction_of_many_keys_holds_few_locks(on_postgres: OutboxFixture) -> None:
    with psycopg.connect(on_postgres.dsn) as connection:
        on_postgres.outbox.add_many(connection, [an_event(key={"k": str(n)}) for n in range(10_000)])

        held = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
        connection.rollback()

    assert held is not None
    assert held[0] <= 2_048


def test_an_open_transaction_is_seen_in_the_status(on_postgres: OutboxFixture) -> None:
    assert on_postgres.outbox.status().oldest_open_transaction_seconds == 0

    with psycopg.connect(on_postgres.dsn) as connection:
        on_postgres.outbox.add(connection, an_event())
        eventually(lambda: on_postgres.outbox.status().oldest_open_transaction_seconds > 0.01)
        connection.rollback()

    assert on_postgres.outbox.status().oldest_open_transaction_seconds == 0


def test_outboxes_of_one_database_do_not_wait_for_each_other(on_postgres: OutboxFixture) -> None:
    other = Outbox.postgres(on_postgres.dsn, table="other_outbox")
    other.init()
    with psycopg.connect(on_postgres.dsn) as one, psycopg.connect(on_postgres.dsn) as two:
        two.execute("SET lock_timeout = '5s'")

        on_postgres.outbox.add(one, an_event())
        other.add(two, an_event())

        two.commit()
    other.close()


@pytest.mark.parametrize("verb", ["add", "add_many"])
def test_transactions_that_take_keys_in_crossing_order_are_told_of_the_deadlock_and_its_remedy(
    on_postgres: OutboxFixture, verb: str
) -> None:
    outbox = on_postgres.outbox
    a, b = an_event(key={"transferId": "a"}), an_event(key={"transferId": "b"})
    with psycopg.connect(on_postgres.dsn) as one, psycopg.connect(on_postgres.dsn) as two, ThreadPoolExecutor() as run:
        outbox.add(one, a)
        outbox.add(two, b)
        crossing = an_event(key={"transferId": "b"})
        waiting = run.submit(outbox.add, one, crossing)
        eventually(lambda: is_waiting(on_postgres))

        raised: list[BaseException] = []
        try:
            again = an_event(key={"transferId": "a"})
            outbox.add(two, again) if verb == "add" else outbox.add_many(two, [again])
        except DeadlockDetected as error:
            raised.append(error)
        two.rollback()
        if (error_of_other := waiting.exception()) is not None:
            raised.append(error_of_other)

        [lost] = raised
        assert isinstance(lost, DeadlockDetected)
        assert "add_many" in lost.remedy
        assert isinstance(lost.__cause__, psycopg.errors.DeadlockDetected)


def test_add_many_in_crossing_order_does_not_deadlock(on_postgres: OutboxFixture) -> None:
    keys = [{"transferId": f"k{n}"} for n in range(20)]

    def add_often(order: list[dict[str, str]]) -> None:
        with psycopg.connect(on_postgres.dsn) as connection:
            for _ in range(20):
                on_postgres.outbox.add_many(connection, [an_event(key=key) for key in order])
                connection.commit()

    with ThreadPoolExecutor() as threads:
        list(threads.map(add_often, [keys, keys[::-1]]))

    assert on_postgres.count() == 800
