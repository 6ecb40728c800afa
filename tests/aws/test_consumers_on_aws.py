"""From the transaction that records an event to the one that holds its effect, over SNS FIFO and SQS FIFO."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import postroad
from postroad import Backend, Queue, QueueSpec
from postroad.connections.aws import AwsConnection
from postroad.inbox import Consumer, ConsumeReport, DomainEvent, Inbox
from postroad.outbox import Outbox, OutboxDispatcher
from postroad.queues.markers import read_dead

pytestmark = pytest.mark.aws


@pytest.fixture
def backend(ministack_url: str, aws: AwsConnection) -> Iterator[Backend]:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        yield backend


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    with Inbox.sqlite(tmp_path / "app.db") as inbox:
        inbox.init()
        with inbox.transaction() as connection:
            connection.execute("CREATE TABLE seen (transfer text, n int)")
        yield inbox


@pytest.fixture
def queues(backend: Backend, unique: Callable[[str], str]) -> tuple[Queue, Queue]:
    """A queue and its dead letters."""
    dead = backend.create_queue(QueueSpec(f"{unique('dead')}.fifo", fifo=True))
    spec = QueueSpec(f"{unique('ledger')}.fifo", fifo=True, visibility=5, dead_letter=dead.name, max_receives=5)
    return backend.create_queue(spec), dead


def note(event: DomainEvent, connection: Any) -> None:
    connection.execute("INSERT INTO seen VALUES (?, ?)", (event.key["transferId"], event.payload["n"]))


def seen(inbox: Inbox) -> list[tuple[str, int]]:
    with inbox.transaction() as connection:
        return list(connection.execute("SELECT transfer, n FROM seen ORDER BY rowid").fetchall())


def handled_by(consumer: Consumer, count: int) -> int:
    handled, deadline = 0, time.monotonic() + 60
    while handled < count and time.monotonic() < deadline:
        handled += consumer.run_once(wait=1.0).handled
    return handled


def test_recorded_events_arrive_once_and_in_the_order_of_their_keys(
    backend: Backend, inbox: Inbox, queues: tuple[Queue, Queue], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    queue, _ = queues
    topic = backend.topic(f"{unique('events-transfers')}.fifo", fifo=True)
    topic.subscribe(queue)
    outbox = Outbox.sqlite(tmp_path / "app.db")
    outbox.init()
    sent = [
        DomainEvent(type="events.transfers.settled", key={"transferId": f"tr_{n % 3}"}, payload={"n": n})
        for n in range(12)
    ]
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        outbox.add_many(connection, sent)

    report = OutboxDispatcher(outbox, topic).drain()
    handled = handled_by(Consumer(queue, note, name="ledger", inbox=inbox, concurrency=3), 12)
    outbox.close()

    assert (report.sent, handled) == (12, 12)
    for transfer in ("tr_0", "tr_1", "tr_2"):
        numbers = [n for name, n in seen(inbox) if name == transfer]
        assert numbers == sorted(numbers)
        assert len(numbers) == 4
    assert inbox.processed("ledger", [event.event_id for event in sent]) == {event.event_id for event in sent}


def test_events_arrive_wrapped_where_the_subscription_is_not_raw(
    backend: Backend, aws: AwsConnection, inbox: Inbox, queues: tuple[Queue, Queue], unique: Callable[[str], str]
) -> None:
    queue, _ = queues
    arn = aws.sns.create_topic(
        Name=f"{unique('wrapped')}.fifo", Attributes={"FifoTopic": "true", "ContentBasedDeduplication": "false"}
    )["TopicArn"]
    url = aws.sqs.get_queue_url(QueueName=queue.name)["QueueUrl"]
    queue_arn = aws.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    aws.sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)
    event = DomainEvent(type="events.transfers.settled", key={"transferId": "tr_1"}, payload={"n": 1})
    aws.sns.publish(TopicArn=arn, Message=event.to_json().decode(), MessageGroupId="tr_1", MessageDeduplicationId="d")

    assert handled_by(Consumer(queue, note, name="ledger", inbox=inbox), 1) == 1
    assert seen(inbox) == [("tr_1", 1)]


def test_what_is_no_event_rests_in_the_dead_letters(inbox: Inbox, queues: tuple[Queue, Queue]) -> None:
    queue, dead = queues
    queue.send([postroad.OutgoingMessage("{}", group="g", dedup_id="d")])

    report = Consumer(queue, note, name="ledger", inbox=inbox, dead_letters=dead).run_once(wait=5.0)

    assert report == ConsumeReport(received=1, dead=1)
    (letter,) = dead.receive(wait=5.0)
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert (marker.reason, marker.source) == ("malformed", queue.name)


def test_a_failing_event_dies_alone_and_its_group_goes_on(inbox: Inbox, backend: Backend, unique: Any) -> None:
    dead = backend.create_queue(QueueSpec(f"{unique('dead')}.fifo", fifo=True))
    spec = QueueSpec(f"{unique('poisoned')}.fifo", fifo=True, visibility=1, dead_letter=dead.name, max_receives=3)
    queue = backend.create_queue(spec)
    for n in range(3):
        event = DomainEvent(type="t", key={"transferId": "tr_1"}, payload={"n": n})
        queue.send([postroad.OutgoingMessage(event.to_json(), group="tr_1", dedup_id=str(n))])

    def handler(event: DomainEvent, connection: Any) -> None:
        if event.payload["n"] == 0:
            raise RuntimeError("never")
        note(event, connection)

    handled = handled_by(Consumer(queue, handler, name="ledger", inbox=inbox), 2)

    assert handled == 2
    assert seen(inbox) == [("tr_1", 1), ("tr_1", 2)]
    assert dead.stats().visible == 1
