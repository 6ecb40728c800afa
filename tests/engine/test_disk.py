"""Who waits for the disk, who does not, and what happens when the disk refuses."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from postroad.connections import disk
from postroad.connections.engine import Engine
from postroad.connections.transaction import Transaction
from postroad.errors import OutcomeUnknown


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
        assert self.allowed.acquire(timeout=30)
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
    monkeypatch.setattr(disk, "_to_disk", slow)
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
        assert slow.reached.acquire(timeout=30)

        assert not writing.done()
        assert _numbers(engine) == [1]

        slow.allowed.release()
        assert writing.result(timeout=30) == 1


def test_a_write_that_need_not_survive_does_not_wait_for_the_disk(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(engine.write, _add(1))
        assert slow.reached.acquire(timeout=30)

        engine.write(_add(2), durable=False)

        assert not writing.done()
        slow.allowed.release()
    assert slow.syncs == 1
    assert _numbers(engine) == [1, 2]


def test_writes_that_come_while_the_disk_is_busy_share_the_next_sync(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(engine.write, _add(0))
        assert slow.reached.acquire(timeout=30)
        others = [threads.submit(engine.write, _add(n)) for n in range(1, 8)]
        while len(engine._turns._waiting) < 7:
            continue

        slow.allowed.release(2)

        assert first.result(timeout=30) == 0
        assert [other.result(timeout=30) for other in others] == list(range(1, 8))
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


def test_a_disk_that_refuses_makes_the_outcome_unknown_for_good(engine: Engine, slow: SlowDisk) -> None:
    slow.fails = OSError(errno.EIO, "Input/output error")
    slow.allowed.release(10)

    with pytest.raises(OutcomeUnknown, match="Input/output error"):
        engine.write(_add(1))

    slow.fails = None
    with pytest.raises(OutcomeUnknown, match="did not keep the log"):
        engine.write(_add(2))
    assert slow.syncs == 1


def test_those_whose_leader_was_interrupted_at_the_disk_wait_for_it_themselves(engine: Engine, slow: SlowDisk) -> None:
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(engine.write, _add(0))
        assert slow.reached.acquire(timeout=30)
        pair = [threads.submit(engine.write, _add(n)) for n in (1, 2)]
        while len(engine._turns._waiting) < 2:
            continue
        slow.allowed.release()
        assert slow.reached.acquire(timeout=30)

        slow.fails = KeyboardInterrupt()
        slow.allowed.release()
        assert slow.reached.acquire(timeout=30)
        slow.fails = None
        slow.allowed.release()

        first.result(timeout=30)
        failed = [each for each in pair if isinstance(each.exception(timeout=30), KeyboardInterrupt)]
    assert len(failed) == 1
    assert slow.syncs == 3
    assert _numbers(engine) == [0, 1, 2]
