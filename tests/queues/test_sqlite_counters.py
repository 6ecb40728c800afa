"""What the embedded engine counts and remembers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import apsw
import pytest

from postroad import OutgoingMessage, QueueSpec
from postroad.engine.engine import Engine
from postroad.queues import Queue, QueueCounters
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
    [counted] = [each.counters for each in SQLiteQueues(engine).overviews() if each.spec.name == "jobs"]
    engine.close()

    assert counted == QueueCounters(sent=3, received=4, acked=1, retried=2, dead=1, redriven=0, expired=1)


def test_what_a_deleted_queue_counted_is_kept(queues: SQLiteQueues, jobs: Queue) -> None:
    jobs.send([OutgoingMessage("a"), OutgoingMessage("b")])
    jobs.ack(jobs.receive(max_messages=1))

    queues.delete_queue("jobs")

    found, deleted = queues.census()
    assert [each.spec.name for each in found] == ["dead"]
    assert (deleted.sent, deleted.received, deleted.acked) == (2, 1, 1)


def test_all_queues_at_once_are_as_each_is_alone(queues: SQLiteQueues, jobs: Queue, clock: FakeClock) -> None:
    ordered = queues.create_queue(QueueSpec("ordered.fifo", fifo=True, delay=30, content_dedup=True))
    ordered.send([OutgoingMessage("a", group="g")])
    jobs.send([OutgoingMessage("a"), OutgoingMessage("b", delay=20), OutgoingMessage("c"), OutgoingMessage("d")])
    jobs.reject(jobs.receive(max_messages=1), reason="invalid")
    jobs.receive(max_messages=1)
    clock.advance(7)

    found = {each.spec.name: each for each in queues.overviews()}

    assert list(found) == ["dead", "jobs", "ordered.fifo"]
    assert {name: each.stats for name, each in found.items()} == {name: queues.queue(name).stats() for name in found}
    assert {name: each.spec for name, each in found.items()} == {name: queues.queue_spec(name) for name in found}
    assert queues.overviews(["jobs", "nobody"]) == [found["jobs"]]


def test_expired_messages_are_not_among_those_counted(queues: SQLiteQueues, jobs: Queue, clock: FakeClock) -> None:
    jobs.send([OutgoingMessage("a")])
    clock.advance(61)

    found, _ = queues.census()

    [stats] = [each.stats for each in found if each.spec.name == "jobs"]
    assert (stats.visible, stats.expired) == (0, 1)


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


def carrying(event_id: str) -> OutgoingMessage:
    return OutgoingMessage(f'{{"event_type":"a","event_id":"{event_id}"}}', {"EventType": "a"})


def id_at(clock: FakeClock, n: int) -> str:
    """Return a UUID of version 7 that was made now."""
    return str(UUID(int=int(clock.now().timestamp() * 1_000) << 80 | 0x7 << 76 | 0b10 << 62 | n))


def test_the_messages_of_an_event_are_found_by_its_time_in_every_queue(
    queues: SQLiteQueues, jobs: Queue, clock: FakeClock
) -> None:
    other = queues.create_queue(QueueSpec("other"))
    sent: dict[str, list[str | None]] = {}
    for n in range(200):
        clock.advance(7)
        event_id = id_at(clock, n)
        sent[event_id] = [queue.send([carrying(event_id)])[0].message_id for queue in (jobs, other)]

    found = {event_id: queues.messages_of(event_id) for event_id in sent}

    assert found == sent


def test_events_that_were_settled_together_are_told_apart(queues: SQLiteQueues, jobs: Queue, clock: FakeClock) -> None:
    ids = [id_at(clock, n) for n in range(3)]
    first, plain, second, third = jobs.send(
        [carrying(ids[0]), OutgoingMessage("plain"), carrying(ids[1]), carrying(ids[2])]
    )
    *held, last = jobs.receive()
    jobs.ack(held)
    jobs.reject([last], reason="invalid")
    dead = queues.messages_of(ids[2])
    queues.queue("dead").purge()

    assert [queues.messages_of(each) for each in ids[:2]] == [[first.message_id], [second.message_id]]
    assert dead == queues.messages_of(ids[2]) == [third.message_id]
    assert plain.message_id is not None
    assert queues.located(plain.message_id) is None
    assert queues.messages_of("nobody") == []


def test_a_file_of_the_version_before_remembers_events_from_now_on(tmp_path: Path, clock: FakeClock) -> None:
    path, event_id = tmp_path / "old.db", id_at(clock, 1)
    engine = Engine(path, clock=clock)
    SQLiteQueues(engine).create_queue(QueueSpec("jobs"))
    engine.close()
    old = apsw.Connection(str(path))
    old.execute("ALTER TABLE trail DROP COLUMN events")
    old.execute("DROP TABLE deleted")
    old.execute("DROP TABLE traceback")
    old.execute("DROP INDEX queue_by_dead_letter")
    old.execute("ALTER TABLE lease DROP COLUMN undone")
    old.execute("UPDATE part SET version = 1 WHERE name = 'queues'")
    old.close()

    engine = Engine(path, clock=clock)
    queues = SQLiteQueues(engine)
    [sent] = queues.queue("jobs").send([carrying(event_id)])
    queues.queue("jobs").ack(queues.queue("jobs").receive())
    found = queues.messages_of(event_id)
    engine.close()

    assert found == [sent.message_id]


def test_names_are_found_a_page_at_a_time_by_their_beginning(queues: SQLiteQueues) -> None:
    for name in ("orders-a", "orders-b", "orders-c", "others"):
        queues.create_queue(QueueSpec(name))

    assert queues.names(prefix="orders-", after="", limit=2) == ["orders-a", "orders-b"]
    assert queues.names(prefix="orders-", after="orders-b", limit=2) == ["orders-c"]
    assert queues.names(prefix="", after="orders-c", limit=9) == ["others"]


def test_the_sources_of_a_dead_letter_queue_follow_the_settings_also_beside_damaged_ones(
    queues: SQLiteQueues, jobs: Queue
) -> None:
    queues.create_queue(QueueSpec("dead-2"))
    queues.create_queue(QueueSpec("more", dead_letter="dead-2"))
    assert queues.sources("dead") == ["jobs"]

    queues.update_queue(QueueSpec("more", dead_letter="dead"))
    queues.engine.write(lambda tx: tx.connection.execute("UPDATE queue SET spec = '{' WHERE name = 'dead-2'"))

    assert queues.sources("dead") == ["jobs", "more"]
    assert queues.sources("dead-2") == []


def test_a_queue_whose_owner_is_gone_is_counted(queues: SQLiteQueues, clock: FakeClock) -> None:
    queues.create_queue(QueueSpec("mine", auto_delete_after=10))

    clock.advance(11)

    assert queues.queues() == []
    assert queues.auto_deleted == 1
