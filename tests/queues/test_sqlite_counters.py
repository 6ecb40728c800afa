"""What the embedded engine counts and remembers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad import OutgoingMessage, QueueSpec
from postroad.engine.engine import Engine
from postroad.queues import Queue
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queues(tmp_path: Path, clock: FakeClock) -> Iterator[SQLiteQueues]:
    engine = Engine(tmp_path / "postroad.db", clock=clock)
    yield SQLiteQueues(engine, trail_keep=100)
    engine.close()


@pytest.fixture
def jobs(queues: SQLiteQueues) -> Queue:
    queues.create_queue(QueueSpec("dead"))
    return queues.create_queue(QueueSpec("jobs", dead_letter="dead", max_receives=2, retention=60))


def test_everything_that_happens_is_counted_across_restarts(
    queues: SQLiteQueues, jobs: Queue, clock: FakeClock, tmp_path: Path
) -> None:
    jobs.send([OutgoingMessage(body) for body in ("acked", "dies", "expires")])
    first, second = jobs.receive(max_messages=2)
    jobs.ack([first])
    jobs.release([second])
    jobs.release(jobs.receive(max_messages=1), error="Boom: no")
    jobs.receive(max_messages=1)
    clock.advance(61)
    jobs.receive()
    queues.engine.close()

    engine = Engine(tmp_path / "postroad.db", clock=clock)
    counted = SQLiteQueues(engine).counters()["jobs"]
    engine.close()

    assert counted == {
        "sent": 3,
        "received": 4,
        "acked": 1,
        "retried": 2,
        "dead": 1,
        "redriven": 0,
        "expired": 1,
    }


def test_a_settled_message_is_remembered_with_what_happened_to_it(queues: SQLiteQueues, jobs: Queue) -> None:
    acked, dead = jobs.send([OutgoingMessage("acked"), OutgoingMessage("dies")])
    first, second = jobs.receive()
    jobs.ack([first])
    jobs.release([second], error="Boom: no")
    jobs.reject(jobs.receive(), reason="handler_failed", error="Boom: again")
    assert acked.message_id is not None
    assert dead.message_id is not None

    assert [(step.what, step.queue, step.receives) for step in queues.settled(acked.message_id)] == [
        ("acked", "jobs", 1)
    ]
    assert [(step.what, step.receives, step.detail) for step in queues.settled(dead.message_id)] == [
        ("failed", 1, "Boom: no"),
        ("dead", 2, "Boom: again"),
    ]


def test_the_trail_turns_over(queues: SQLiteQueues, jobs: Queue) -> None:
    ids = []
    for n in range(300):
        ids += [result.message_id for result in jobs.send([OutgoingMessage(str(n))])]
        jobs.ack(jobs.receive())

    assert ids[0] is not None
    assert ids[-1] is not None
    assert queues.settled(ids[0]) == []
    assert len(queues.settled(ids[-1])) == 1


def test_a_message_id_of_nobody_is_found_nowhere(queues: SQLiteQueues) -> None:
    assert queues.settled("not-an-id") == []
    assert queues.settled("00000000-0000-8000-8000-000000000000") == []


def test_a_queue_whose_owner_is_gone_is_counted(queues: SQLiteQueues, clock: FakeClock) -> None:
    queues.create_queue(QueueSpec("mine", auto_delete_after=10))

    clock.advance(11)

    assert queues.queues() == []
    assert queues.auto_deleted == 1
