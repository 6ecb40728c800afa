from __future__ import annotations

import threading
import time

import pytest
from tests.memory import memory_queues

from postroad.queues import OutgoingMessage, QueueSpec
from postroad.testing.clock import FakeClock
from postroad.testing.queues import QueueConformance, QueueFixture


class TestMemoryQueue(QueueConformance):
    @pytest.fixture
    def ground(self) -> QueueFixture:
        clock = FakeClock()
        return QueueFixture(queues=memory_queues(clock), clock=clock)


def test_a_waiting_receiver_notices_that_the_clock_was_moved() -> None:
    clock = FakeClock()
    queue = memory_queues(clock).create_queue(QueueSpec("jobs", visibility=60))
    queue.send([OutgoingMessage(body="one")])
    queue.receive()
    mover = threading.Timer(0.1, clock.advance, [61])

    mover.start()
    started = time.monotonic()
    received = queue.receive(wait=20)
    mover.join()

    assert [delivery.receive_count for delivery in received] == [2]
    assert time.monotonic() - started < 15


def test_changing_a_received_message_does_not_change_the_queue() -> None:
    queue = memory_queues(FakeClock()).create_queue(QueueSpec("jobs"))
    queue.send([OutgoingMessage(body="one", attributes={"k": "v"})])

    attributes = queue.receive(visibility=0)[0].attributes
    assert isinstance(attributes, dict)
    attributes["k"] = "changed"

    assert queue.receive()[0].attributes == {"k": "v"}


def test_abandoned_queues_are_counted() -> None:
    clock = FakeClock()
    store = memory_queues(clock)
    store.create_queue(QueueSpec("jobs", auto_delete_after=10))

    clock.advance(11)

    assert store.queues() == []
    assert store.auto_deleted == 1
