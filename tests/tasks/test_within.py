"""Tasks that join the caller's own transaction: the outbox holds them, and its dispatcher submits them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.tasks import errands
from tests.tasks.benches import APP, TENANT, Bench

from postroad import Backend, DomainEvent, OutgoingMessage
from postroad.errors import InvalidTask
from postroad.outbox import Outbox, OutboxDispatcher
from postroad.tasks import TaskHandle, TaskProducer


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    made = Outbox.sqlite(tmp_path / "shop.db")
    made.init()
    return made


@pytest.fixture
def connection(outbox: Outbox, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(tmp_path / "shop.db", timeout=10)
    yield opened
    opened.close()


@pytest.fixture
def producer(backend: Backend, outbox: Outbox) -> TaskProducer:
    return TaskProducer(backend, tenant_id=TENANT, app=APP, outbox=outbox)


class Collected:
    """A topic that keeps what is published."""

    def __init__(self) -> None:
        self.messages: list[OutgoingMessage] = []

    def publish(self, messages: Any) -> list[Any]:
        self.messages += messages
        return [Ok() for _ in messages]


class Ok:
    ok = True
    error = None


def test_a_task_exists_if_and_only_if_the_callers_transaction_commits(
    backend: Backend, outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer
) -> None:
    kept = producer.options(within=connection, request_id="kept").submit(errands.scrape, store_id="s1")
    connection.commit()
    producer.options(within=connection, request_id="gone").submit(errands.scrape, store_id="s2")
    connection.rollback()
    topic = Collected()
    assert backend.queue("tasks").stats().visible == 0

    report = OutboxDispatcher(outbox, topic).drain()

    assert kept == TaskHandle("kept", 1, True)
    assert (report.sent, topic.messages) == (1, [])
    assert backend.queue("tasks").stats().visible == 1
    Bench(backend).work(imports=("tests.tasks.errands",))
    assert kept.wait(120) == errands.Store("s1", 2, [])
    assert producer.status("gone") is None


def test_a_row_that_is_dispatched_again_is_the_same_run(
    backend: Backend, outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer
) -> None:
    with connection:
        for _ in range(2):
            producer.options(within=connection, request_id="once").submit(errands.scrape, "s1")

    report = OutboxDispatcher(outbox, Collected()).drain()

    assert report.sent == 2
    assert backend.queue("tasks").stats().visible == 1


def test_tasks_and_events_of_one_transaction_go_their_own_ways(
    backend: Backend, outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer
) -> None:
    topic = Collected()
    with connection:
        producer.options(within=connection).submit_many([("echo", {"n": n}) for n in range(5)])
        outbox.add(connection, DomainEvent(type="orders.placed", key={"order": "1"}, payload={"n": 1}))
        producer.options(within=connection, delay="5m").submit(errands.elsewhere, 4)

    def render(event: DomainEvent) -> OutgoingMessage:
        return OutgoingMessage(event.type)

    report = OutboxDispatcher(outbox, topic, render=render).drain()

    assert report.sent == 7
    assert [message.body for message in topic.messages] == ["orders.placed"]
    assert backend.queue("tasks").stats().visible == 5
    assert backend.queue("slow").stats().delayed == 1


def test_tasks_that_were_submitted_are_not_replayed_as_events(
    outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer
) -> None:
    topic = Collected()
    with connection:
        producer.options(within=connection).submit("echo", {"n": 1})
        outbox.add(connection, DomainEvent(type="orders.placed", key={"order": "1"}, payload={"n": 1}))
    OutboxDispatcher(outbox, topic).drain()

    report = outbox.replay(topic, by="ops", reason="test", since=datetime(2026, 1, 1, tzinfo=UTC))

    assert report.replayed == 1
    assert [message.attributes["EventType"] for message in topic.messages] == ["orders.placed"] * 2


def test_a_request_id_that_was_used_for_another_task_fails_its_row_and_no_other(
    backend: Backend, outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer
) -> None:
    producer.submit("echo", {"n": 1}, request_id="taken")
    with connection:
        producer.options(within=connection, request_id="taken").submit("echo", {"n": 2})
        producer.options(within=connection, request_id="free").submit("echo", {"n": 3})

    report = OutboxDispatcher(outbox, Collected()).drain()

    assert (report.sent, report.failed) == (1, 1)
    [row] = outbox.failed()
    assert "submitted with another name or input" in str(row.last_error)
    assert producer.status("free") is not None


def test_a_dispatcher_without_a_producer_keeps_the_row_and_says_what_is_missing(
    outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer, tmp_path: Path
) -> None:
    with connection:
        producer.options(within=connection, request_id="r1").submit("echo", {"n": 1})
    topic, other = Collected(), Outbox.sqlite(tmp_path / "shop.db")

    report = OutboxDispatcher(other, topic).run_once()

    assert (report.retried, topic.messages) == (1, [])
    [(event_id,)] = connection.execute("SELECT id FROM outbox").fetchall()
    row = other.get(event_id)
    assert row is not None
    assert "made no TaskProducer with this outbox" in str(row.last_error)


def test_a_wrong_argument_is_refused_before_anything_is_recorded(
    outbox: Outbox, connection: sqlite3.Connection, producer: TaskProducer
) -> None:
    with pytest.raises(InvalidTask):
        producer.options(within=connection).submit(errands.scrape, store_id=5)  # type: ignore[call-overload]

    assert outbox.status().pending == 0
