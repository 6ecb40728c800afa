"""What may go wrong between threads, processes and failures on the embedded engine, and does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.engine.engine import Engine
from postroad.errors import ConfigurationError, MessageTooLarge, QueueNotFound, StaleReceipt, StorageFull
from postroad.queues import Delivery, Queue
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock
from postroad.topics.sqlite import SQLiteTopics


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "postroad.db")
    yield engine
    engine.close()


@pytest.fixture
def queues(engine: Engine) -> SQLiteQueues:
    return SQLiteQueues(engine)


def _in_background(queue: Queue, wait: float) -> tuple[threading.Thread, list[Delivery | BaseException]]:
    found: list[Delivery | BaseException] = []

    def receive() -> None:
        try:
            found.extend(queue.receive(wait=wait))
        except postroad.PostroadError as error:
            found.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    return thread, found


def _until_parked(queues: SQLiteQueues) -> None:
    while not queues.claimer.parking._waiters:
        pass


def test_new_settings_lose_nothing_that_was_sent_in_the_same_commit(engine: Engine, queues: SQLiteQueues) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))

    with engine.transaction():
        queue.send([OutgoingMessage("before")])
        queues.update_queue(QueueSpec("jobs", visibility=60))
        queue.send([OutgoingMessage("after")])

    assert [delivery.body for delivery in queue.receive()] == [b"before", b"after"]


def test_a_waiting_receiver_outlives_a_send_that_fails(engine: Engine, queues: SQLiteQueues) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))
    thread, found = _in_background(queue, wait=20)
    _until_parked(queues)
    engine._writer.pragma("max_page_count", engine.read(lambda connection: int(connection.pragma("page_count"))))

    with pytest.raises(StorageFull):
        queue.send([OutgoingMessage("x" * 500_000)])
    engine._writer.pragma("max_page_count", 1_000_000)
    queue.send([OutgoingMessage("fits")])
    thread.join()

    assert [delivery.body for delivery in found if isinstance(delivery, Delivery)] == [b"fits"]


def test_a_queue_lives_as_long_as_somebody_waits_on_it(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = Engine(tmp_path / "postroad.db", clock=clock)
    queues = SQLiteQueues(engine)
    queue = queues.create_queue(QueueSpec("mine", auto_delete_after=10))

    for _ in range(5):
        queue.receive(wait=0.01)
        clock.advance(6)

    assert queues.queues() == ["mine"]
    engine.close()


def test_a_receiver_is_told_that_its_queue_was_deleted(queues: SQLiteQueues) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))
    thread, found = _in_background(queue, wait=20)
    _until_parked(queues)

    queues.delete_queue("jobs")
    thread.join()

    assert [str(error) for error in found] == ['queue "jobs" was deleted']
    assert isinstance(found[0], QueueNotFound)


def test_a_message_delayed_for_a_waiting_receiver_comes_in_time(queues: SQLiteQueues) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))
    thread, found = _in_background(queue, wait=20)
    _until_parked(queues)

    queue.send([OutgoingMessage("later", delay=0.2)])
    thread.join()

    assert [delivery.body for delivery in found if isinstance(delivery, Delivery)] == [b"later"]


def test_a_purge_that_dies_half_way_leaves_nothing_that_cannot_be_received(
    engine: Engine, queues: SQLiteQueues
) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))
    for _ in range(11):
        queue.send([OutgoingMessage("x")] * 1_000)
        queue.receive(max_messages=1_000, visibility=0.01)

    queue._write(queues.mover.purge_step, queue._next_id(), 10_000)
    left = [delivery for _ in range(3) for delivery in queue.receive(max_messages=1_000, wait=1)]

    assert len(left) == 1_000


def test_work_that_fails_inside_a_block_is_taken_back_alone(engine: Engine, queues: SQLiteQueues) -> None:
    large, small = queues.create_queue(QueueSpec("large")), queues.create_queue(QueueSpec("s", max_message_bytes=1_024))
    topic = SQLiteTopics(engine, queues).topic("news")
    topic.subscribe(large)
    topic.subscribe(small)

    with engine.transaction():
        large.send([OutgoingMessage("kept")])
        with pytest.raises(MessageTooLarge):
            topic.publish([OutgoingMessage("x" * 2_000)])

    assert [message.body for message in large.peek()] == [b"kept"]
    assert small.peek() == []


def test_inside_a_block_nothing_waits_and_everything_is_seen(engine: Engine, queues: SQLiteQueues) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))

    with engine.transaction():
        nothing = queue.receive(wait=20)
        queue.send([OutgoingMessage("one")])
        seen = queue.peek()
        queue.receive()
        stats = queue.stats()
        with pytest.raises(ConfigurationError, match="transaction"):
            engine.close()

    assert nothing == []
    assert [message.body for message in seen] == [b"one"]
    assert (stats.visible, stats.in_flight) == (0, 1)


def test_an_interruption_after_the_commit_doubles_nothing(
    engine: Engine, queues: SQLiteQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._checkpoints, "run_if_due", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.send([OutgoingMessage("once")])
    monkeypatch.undo()

    assert [delivery.body for delivery in queue.receive()] == [b"once"]


def test_numbers_beyond_the_file_are_nobodys(queues: SQLiteQueues) -> None:
    queue = queues.create_queue(QueueSpec("jobs"))
    queue.send([OutgoingMessage("one")])
    (held,) = queue.receive()
    forged = Delivery(
        held.message_id, held.body, {}, None, "9999999999999999999-1", 1, held.sent_at, held.first_received_at, None
    )

    (acked,) = queue.ack([forged])

    assert isinstance(acked.error, StaleReceipt)
    assert queue.peek(after="9999999999999999999") == []
    with pytest.raises(ConfigurationError, match="auto_delete_after"):
        QueueSpec("mine", auto_delete_after=float("inf"))


def test_what_a_forked_child_sends_is_seen_by_all_when_the_parent_closes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'postroad.db'}"
    parent = postroad.connect(url)
    parent.create_queue(QueueSpec("jobs")).send([OutgoingMessage("parent")])
    closed, seen = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        own = postroad.connect(url)
        own.queue("jobs").send([OutgoingMessage("child")])
        os.write(seen[1], b"x")
        os.read(closed[0], 1)
        own.queue("jobs").send([OutgoingMessage("child again")])
        os._exit(0)

    os.read(seen[0], 1)
    parent.close()
    os.write(closed[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*closed, *seen):
        os.close(descriptor)

    with postroad.connect(url) as other:
        assert [message.body for message in other.queue("jobs").peek()] == [b"parent", b"child", b"child again"]
