"""Who waits for the disk, who does not, and what happens when the disk refuses."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroad import OutgoingMessage, QueueSpec
from postroad.engine import disk
from postroad.engine.engine import Engine
from postroad.engine.transaction import Transaction
from postroad.errors import InvalidInput, OutcomeUnknown, Unavailable
from postroad.queues.sqlite import SQLiteQueues


class SlowDisk:
    """Counts the syncs; each waits until it is allowed to go on."""

    def __init__(self) -> None:
        self.syncs = 0
        self.reached = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.fails: BaseException | None = None

    def __call__(self, descriptor: int) -> None:
        self.syncs += 1
        self.reached.release()
        assert self.allowed.acquire(timeout=120)
        if self.fails is not None:
            raise self.fails
        os.fdatasync(descriptor)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "p.db")
    engine.write(lambda tx: tx.connection.execute("CREATE TABLE number (n)"))
    yield engine
    engine.close()


@pytest.fixture
def slow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    slow = SlowDisk()
    monkeypatch.setattr(disk, "to_disk", slow)
    yield slow
    slow.fails = None
    slow.allowed.release(1_000)


def _add(n: int) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        tx.connection.execute("INSERT INTO number VALUES (?)", (n,))
        return n

    return work


def _numbers(engine: Engine) -> list[int]:
    return engine.read(lambda connection: [int(n) for (n,) in connection.execute("SELECT n FROM number ORDER BY n")])


def test_a_durable_write_returns_after_the_sync_and_is_visible_before_it(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(engine.write, _add(1))
        assert slow.reached.acquire(timeout=120)

        assert not writing.done()
        assert _numbers(engine) == [1]

        slow.allowed.release()
        assert writing.result(timeout=120) == 1


def test_a_write_that_need_not_survive_does_not_wait_for_the_disk(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(engine.write, _add(1))
        assert slow.reached.acquire(timeout=120)

        engine.write(_add(2), durable=False)

        assert not writing.done()
        slow.allowed.release()
    assert slow.syncs == 1
    assert _numbers(engine) == [1, 2]


def test_writes_that_come_while_the_disk_is_busy_share_the_next_sync(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(engine.write, _add(0))
        assert slow.reached.acquire(timeout=120)
        others = [threads.submit(engine.write, _add(n)) for n in range(1, 8)]
        while len(engine._turns._waiting) < 7:
            continue

        slow.allowed.release(2)

        assert first.result(timeout=120) == 0
        assert [other.result(timeout=120) for other in others] == list(range(1, 8))
    assert slow.syncs == 2


def test_work_that_finds_out_that_it_must_survive_waits_for_the_disk(engine: Engine, slow: SlowDisk) -> None:
    slow.allowed.release()

    engine.write(lambda tx: tx.must_be_durable(), durable=False)

    assert slow.syncs == 1


def test_a_transaction_waits_for_the_disk_once(engine: Engine, slow: SlowDisk) -> None:
    slow.allowed.release()

    with engine.transaction():
        engine.write(_add(1))
        engine.write(_add(2))

    assert slow.syncs == 1


def test_only_what_was_under_way_is_unknown_when_the_disk_refuses_and_the_rest_is_not_stored(
    engine: Engine, slow: SlowDisk
) -> None:
    slow.fails = OSError(errno.EIO, "Input/output error")
    slow.allowed.release(10)

    with pytest.raises(OutcomeUnknown, match="Input/output error"):
        engine.write(_add(1))

    slow.fails = None
    for n in (2, 3, 4):
        with pytest.raises(Unavailable, match="nothing was stored"):
            engine.write(_add(n))
    assert slow.syncs == 1
    assert _numbers(engine) == [1]


@contextmanager
def _a_log_that_cannot_be_synced(engine: Engine) -> Iterator[None]:
    """Let the system itself refuse: what stands behind the descriptor of the log is a pipe."""
    log = engine._disk._log
    assert log is not None
    kept, (reads, writes) = os.dup(log), os.pipe()
    os.dup2(reads, log)
    try:
        yield
    finally:
        os.dup2(kept, log)
        for descriptor in (kept, reads, writes):
            os.close(descriptor)


def test_a_caller_who_repeats_a_send_behind_a_failed_sync_makes_no_copies(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "postroad.db")
    queue = SQLiteQueues(engine).create_queue(QueueSpec("orders"))

    outcomes = []
    with _a_log_that_cannot_be_synced(engine):
        for _ in range(3):
            with pytest.raises((OutcomeUnknown, Unavailable)) as failed:
                queue.send([OutgoingMessage("the same order")])
            outcomes.append(failed.type)
    with pytest.raises(Unavailable), engine.transaction():
        queue.send([OutgoingMessage("the same order")])
    with pytest.raises(Unavailable):
        engine.check()

    assert outcomes == [OutcomeUnknown, Unavailable, Unavailable]
    [delivery] = queue.receive(max_messages=10)
    assert queue.ack([delivery])[0].ok
    assert queue.stats().visible == 0
    engine.close()


def test_a_receive_that_would_have_to_survive_leaves_everything_as_it_was(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "postroad.db")
    queues = SQLiteQueues(engine)
    dead = queues.create_queue(QueueSpec("dead"))
    queue = queues.create_queue(QueueSpec("orders", dead_letter="dead", max_receives=1))
    queue.send([OutgoingMessage("poison")])
    queue.release(queue.receive())
    with _a_log_that_cannot_be_synced(engine), pytest.raises(OutcomeUnknown):
        queues.create_queue(QueueSpec("unknown"))

    with pytest.raises(Unavailable, match="nothing was stored"):
        queue.receive()

    assert dead.peek() == []
    assert [message.body for message in queue.peek()] == [b"poison"]
    engine.close()


def test_all_that_shared_the_sync_that_failed_are_unknown_and_who_failed_before_keeps_its_error(
    engine: Engine, slow: SlowDisk
) -> None:
    def refuse(_: Transaction) -> int:
        raise InvalidInput("no number")

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(engine.write, _add(0))
        assert slow.reached.acquire(timeout=120)
        group = [threads.submit(engine.write, work) for work in (refuse, _add(1), _add(2))]
        while len(engine._turns._waiting) < 3:
            continue
        slow.allowed.release()
        first.result(timeout=120)
        assert slow.reached.acquire(timeout=120)
        slow.fails = OSError(errno.EIO, "Input/output error")
        slow.allowed.release()

        outcomes = [type(each.exception(timeout=120)) for each in group]
    assert outcomes == [InvalidInput, OutcomeUnknown, OutcomeUnknown]
    assert _numbers(engine) == [0, 1, 2]


def test_those_whose_leader_was_interrupted_at_the_disk_wait_for_it_themselves(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(engine.write, _add(0))
        assert slow.reached.acquire(timeout=120)
        pair = [threads.submit(engine.write, _add(n)) for n in (1, 2)]
        while len(engine._turns._waiting) < 2:
            continue
        slow.allowed.release()
        assert slow.reached.acquire(timeout=120)

        slow.fails = KeyboardInterrupt()
        slow.allowed.release()
        assert slow.reached.acquire(timeout=120)
        slow.fails = None
        slow.allowed.release()

        first.result(timeout=120)
        failed = [each for each in pair if isinstance(each.exception(timeout=120), KeyboardInterrupt)]
    assert len(failed) == 1
    assert slow.syncs == 3
    assert _numbers(engine) == [0, 1, 2]
