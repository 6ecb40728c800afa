"""A consumer that runs: started, stopped, interrupted, cut off from its database, measured."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from prometheus_client import REGISTRY
from tests.inbox.fixtures import InboxFixture
from tests.inbox.mail import event, held, posting, send, send_body
from tests.waiting import eventually

from postroad import Backend, Queue, QueueSpec
from postroad.errors import ConfigurationError, Unavailable
from postroad.inbox import Consumer, ConsumeReport, DomainEvent, Inbox
from postroad.inbox.effects import Timing

pytestmark = pytest.mark.slow


@contextmanager
def started(consumer: Consumer) -> Iterator[None]:
    consumer.start()
    try:
        yield
    finally:
        consumer.stop()


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_a_started_consumer_handles_what_comes_until_it_is_stopped(fixture: InboxFixture, queue: Queue) -> None:
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox)

    with started(consumer):
        send(queue, event("tr_1"))
        eventually(lambda: fixture.times("tr_1") == 1 and held(queue) == 0)
    send(queue, event("tr_2"))

    assert held(queue) == 1
    assert fixture.times("tr_2") == 0


def test_starting_twice_is_refused_and_stopping_twice_is_not(fixture: InboxFixture, queue: Queue) -> None:
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox)
    consumer.start()

    with pytest.raises(RuntimeError, match="already started"):
        consumer.start()

    consumer.stop()
    consumer.stop()


def test_a_stop_lets_the_handler_end_and_gives_back_the_rest_at_once(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1", n=1), event("tr_1", n=2), event("tr_2", n=3))
    inside, go_on = threading.Event(), threading.Event()

    def handler(event: DomainEvent, connection: Any) -> None:
        inside.set()
        go_on.wait(120)
        fixture.post(connection, event.key["transferId"])

    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox)
    consumer.start()
    inside.wait(120)
    stopping = threading.Thread(target=consumer.stop)
    stopping.start()

    eventually(lambda: queue.stats().visible >= 1)
    go_on.set()
    stopping.join(120)

    assert (fixture.times("tr_1"), fixture.times("tr_2")) == (1, 0)
    assert (queue.stats().visible, queue.stats().in_flight) == (2, 0)


@pytest.mark.parametrize("retention", [timedelta(days=30), None])
def test_a_consumer_forgets_what_is_older_than_the_retention_where_there_is_one(
    fixture: InboxFixture, queue: Queue, retention: timedelta | None
) -> None:
    old = [event(f"old_{n}") for n in range(1_100)]
    with fixture.inbox.transaction() as connection:
        for each in old:
            fixture.inbox.first_time(connection, "ledger", each.event_id)
    fixture.rows("UPDATE inbox SET processedat = '2000-01-01T00:00:00.000Z'")
    with Inbox.open(fixture.dsn, retention=retention) as inbox:
        consumer = Consumer(queue, posting(fixture), name="ledger", inbox=inbox)

        with started(consumer):
            send(queue, event("tr_1"))
            left = 1 if retention else 1_101
            eventually(lambda: fixture.times("tr_1") == 1 and fixture.rows("SELECT count(*) FROM inbox") == [(left,)])

        assert inbox.prune() == 0


def test_run_ends_when_its_event_is_set(fixture: InboxFixture, queue: Queue) -> None:
    stop = threading.Event()
    send(queue, event("tr_1"))

    def handler(event: DomainEvent, connection: Any) -> None:
        fixture.post(connection, "tr_1")
        stop.set()

    Consumer(queue, handler, name="ledger", inbox=fixture.inbox).run(stop)

    assert fixture.times("tr_1") == 1
    assert held(queue) == 0


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handler_may_stop_its_consumer(fixture: InboxFixture, queue: Queue, concurrency: int) -> None:
    send(queue, event("tr_1", n=1), event("tr_1", n=2))
    stopped = threading.Event()

    def handler(event: DomainEvent, effect: Any) -> None:
        consumer.stop(timeout=60)
        stopped.set()

    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, effects="external", concurrency=concurrency)
    consumer.start()

    assert stopped.wait(120)
    eventually(lambda: held(queue) == 1)


def test_several_threads_of_a_running_consumer_keep_the_order_of_each_group(
    fixture: InboxFixture, queue: Queue
) -> None:
    sent = [event(f"tr_{n % 5}", n=n) for n in range(60)]
    seen, lock = list[tuple[str, int]](), threading.Lock()

    def handler(event: DomainEvent, effect: Any) -> None:
        with lock:
            seen.append((event.key["transferId"], event.payload["n"]))

    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, concurrency=4, effects="external")
    with started(consumer):
        send(queue, *sent)
        eventually(lambda: held(queue) == 0)

    assert len(seen) == 60
    for group in range(5):
        numbers = [n for name, n in seen if name == f"tr_{group}"]
        assert numbers == sorted(numbers)


def test_an_exit_in_a_handler_is_its_failure_and_ends_nothing(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))
    exits = [SystemExit(3)]

    def handler(event: DomainEvent, connection: Any) -> None:
        fixture.post(connection, "tr_1")
        if exits:
            raise exits.pop()

    with started(Consumer(queue, handler, name="ledger", inbox=fixture.inbox)):
        eventually(lambda: held(queue) == 0)

    assert fixture.times("tr_1") == 1


def test_an_interrupted_run_once_gives_its_messages_back(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"), event("tr_2"))

    def handler(event: DomainEvent, connection: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Consumer(queue, handler, name="ledger", inbox=fixture.inbox).run_once()

    assert (queue.stats().visible, queue.stats().in_flight) == (2, 0)


def test_while_the_database_is_gone_messages_are_not_worn_out(fixture: InboxFixture, queue: Queue) -> None:
    """Of the five receives that a message has, an outage costs one."""
    asked = threading.Event()
    tries: list[None] = []
    down = [True]

    class Flaky(Inbox):
        @contextmanager
        def transaction(self) -> Iterator[Any]:
            if down:
                tries.append(None)
                if len(tries) > 1:
                    asked.set()
                raise Unavailable("the server is restarting")
            with super().transaction() as connection:
                yield connection

    counts: list[int] = []
    flaky = Flaky.open(fixture.dsn)
    send(queue, event("tr_1"))
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=flaky)

    with started(consumer):
        asked.wait(120)
        counts += [message.receive_count for message in queue.peek()]
        down.clear()
        eventually(lambda: held(queue) == 0)
    flaky.close()

    assert counts == [1]
    assert fixture.times("tr_1") == 1


@contextmanager
def unwritable(fixture: InboxFixture) -> Iterator[None]:
    """While the block runs the database can be read, and nothing can be written."""
    if fixture.dsn.startswith("sqlite:///"):
        with closing(fixture.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
        return
    with psycopg.connect(fixture.dsn, autocommit=True, options="-cdefault_transaction_read_only=off") as connection:
        for change in ("SET default_transaction_read_only = on", "RESET ALL"):
            connection.execute(f'ALTER DATABASE "{connection.info.dbname}" {change}')
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if change != "RESET ALL":
                yield


@pytest.mark.parametrize("own", [True, False])
def test_while_the_database_cannot_be_written_messages_are_not_worn_out(
    fixture: InboxFixture, queue: Queue, own: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("postroad.connections.application_file._BUSY_SECONDS", 0.05)
    fixture.inbox.close()
    transaction = None if own else partial(_transaction, fixture)
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox, transaction=transaction)

    with started(consumer):
        with unwritable(fixture):
            send(queue, event("tr_1"))
            eventually(lambda: "consumer_paused" in caplog.text)
            counts = [message.receive_count for message in queue.peek()]
        eventually(lambda: held(queue) == 0)

    assert counts == [1]
    assert fixture.times("tr_1") == 1


@contextmanager
def _transaction(fixture: InboxFixture) -> Iterator[Any]:
    """A transaction as an application makes it, with its driver's own errors."""
    with closing(fixture.connect()) as connection:
        if fixture.dsn.startswith("sqlite:///"):
            connection.execute("PRAGMA busy_timeout = 50")
            connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.commit()


def test_lag_handler_time_and_dead_letters_are_measured(
    fixture: InboxFixture, queue: Queue, dead_letters: Queue
) -> None:
    labels = {"service": "cts", "queue": queue.name}
    lags = []
    send(queue, event("tr_1"))
    send_body(queue, "{}")

    def handler(event: DomainEvent, connection: Any) -> None:
        lags.append(sample("event_consumer_lag_seconds", **labels))

    by_handler = {**labels, "handler": f"{__name__}.{handler.__qualname__}"}
    before = sample("postroad_handler_seconds_count", **by_handler) or 0
    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, dead_letters=dead_letters, service="cts")

    assert consumer.run_once() == ConsumeReport(received=2, handled=1, dead=1)
    assert lags[0] is not None
    assert lags[0] > 0
    assert sample("event_consumer_lag_seconds", **labels) == 0
    assert sample("dead_letter_count", **labels) == 1
    assert (sample("postroad_handler_seconds_count", **by_handler) or 0) - before == 1


def test_a_handler_that_hangs_shows_a_growing_lag_that_no_newer_event_hides(
    fixture: InboxFixture, backend: Backend
) -> None:
    queue = backend.create_queue(QueueSpec("hung.fifo", fifo=True))
    labels = {"service": "hung", "queue": queue.name}
    begun, go_on, handled = threading.Event(), threading.Event(), []
    old = dataclasses.replace(event("tr_1"), occurred_at=datetime.now(UTC) - timedelta(seconds=400))

    def handler(event: DomainEvent, effect: Any) -> None:
        if event.event_id == old.event_id:
            begun.set()
            go_on.wait(120)
        handled.append(event.event_id)

    # Two consumers of one service and queue show one lag, whoever of them holds the oldest event.
    made = [
        Consumer(queue, handler, name=name, inbox=fixture.inbox, effects="external", concurrency=2, service="hung")
        for name in ("ledger", "ledger-again")
    ]
    with started(made[0]), started(made[1]):
        assert sample("event_consumer_lag_seconds", **labels) == 0
        send(queue, old)
        assert begun.wait(120)
        first = sample("event_consumer_lag_seconds", **labels) or 0.0
        send(queue, event("tr_2"))
        eventually(lambda: handled)
        hidden_by_none = sample("event_consumer_lag_seconds", **labels) or 0.0
        go_on.set()
        eventually(lambda: len(handled) == 2)
        eventually(lambda: sample("event_consumer_lag_seconds", **labels) == 0)

    assert 400 <= first < hidden_by_none


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), True, "60"])
def test_an_interval_of_reports_that_is_no_time_is_refused(fixture: InboxFixture, queue: Queue, interval: Any) -> None:
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox)

    with pytest.raises(ConfigurationError, match="interval"):
        consumer.report_to_cloudwatch(interval, region="us-east-1")


def test_a_visibility_below_twice_the_p99_is_advised_against(
    fixture: InboxFixture, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    queue = backend.create_queue(QueueSpec("hasty.fifo", fifo=True, visibility=0.01))
    send(queue, *(event(f"tr_{n}") for n in range(50)))
    consumer = Consumer(
        queue, lambda event, effect: time.sleep(0.006), name="ledger", inbox=fixture.inbox, effects="external"
    )

    while not consumer.advice:
        consumer.run_once(wait=0.5)

    assert list(consumer.advice) == ["visibility_too_short"]
    assert "hasty.fifo" in consumer.advice["visibility_too_short"]
    assert "visibility_too_short" in caplog.text


def test_advice_needs_fifty_calls_and_goes_when_handlers_become_quick() -> None:
    timing = Timing("orders", visibility=30)

    told = [timing.add(16.0) for _ in range(50)]

    assert told == [False] * 49 + [True]
    assert list(timing.advice) == ["visibility_too_short"]
    for _ in range(2_000):
        timing.add(0.1)
    assert timing.advice == {}
