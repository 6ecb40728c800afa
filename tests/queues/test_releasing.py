"""What is released for later holds up what was sent after it, and nothing that was sent before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.memory import memory_queues

from postroad.engine.engine import Engine
from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Queue]:
    spec = QueueSpec("jobs.fifo", fifo=True, visibility=30)
    if request.param == "memory":
        yield memory_queues(clock).create_queue(spec)
        return
    engine = Engine(tmp_path / "data.db", clock=clock)
    yield SQLiteQueues(engine).create_queue(spec)
    engine.close()


def test_a_message_released_for_later_does_not_hold_up_the_one_before_it(queue: Queue, clock: FakeClock) -> None:
    queue.send([OutgoingMessage(body, group="a", dedup_id=body) for body in ("1", "2", "3")])
    first, second, third = queue.receive(max_messages=3)
    queue.release([first])
    queue.release([second], after=7)
    queue.release([third])

    now = queue.receive(max_messages=3)
    queue.ack(now)
    meanwhile = queue.receive(max_messages=3)
    clock.advance(7)
    later = queue.receive(max_messages=3)

    assert [[delivery.body for delivery in found] for found in (now, meanwhile, later)] == [[b"1"], [], [b"2", b"3"]]
