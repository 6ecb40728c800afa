from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.waiting import eventually

from postroad.engine.engine import Engine
from postroad.engine.transaction import Request, Transaction, Turns, every
from postroad.errors import ConfigurationError


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "postroad.db")
    engine.write(lambda tx: tx.connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)"))
    yield engine
    engine.close()


def _add(n: int) -> Callable[[Transaction], object]:
    return lambda tx: tx.connection.execute("INSERT INTO t VALUES (?)", (n,))


def _numbers(engine: Engine) -> list[int]:
    return [n for (n,) in engine.read(lambda connection: every(connection, "SELECT n FROM t ORDER BY n"))]


def _in_threads(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_wait_share_one_commit(engine: Engine) -> None:
    transactions: set[int] = set()
    started, go_on = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        started.set()
        assert go_on.wait(120)

    def write(n: int) -> None:
        def work(tx: Transaction) -> None:
            transactions.add(id(tx))
            tx.connection.execute("INSERT INTO t VALUES (?)", (n,))

        engine.write(work)

    leader = threading.Thread(target=engine.write, args=(hold,))
    leader.start()
    assert started.wait(120)
    followers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for follower in followers:
        follower.start()
    while len(engine._turns._waiting) < 8:
        pass
    go_on.set()
    for thread in (leader, *followers):
        thread.join()

    assert _numbers(engine) == list(range(8))
    assert len(transactions) == 1


def test_one_that_fails_does_not_harm_the_others_of_its_group(engine: Engine) -> None:
    errors: list[BaseException] = []

    def fail() -> None:
        def work(tx: Transaction) -> None:
            tx.connection.execute("INSERT INTO t VALUES (-1)")
            raise ValueError("mine alone")

        try:
            engine.write(work)
        except ValueError as error:
            errors.append(error)

    def add(n: int) -> None:
        engine.write(_add(n))

    _in_threads(*(fail if n % 3 == 0 else partial(add, n) for n in range(30)))

    assert _numbers(engine) == [n for n in range(30) if n % 3]
    assert [str(error) for error in errors] == ["mine alone"] * 10


def test_an_interruption_hits_the_leading_thread_only(engine: Engine) -> None:
    started, go_on = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        started.set()
        assert go_on.wait(120)

    def follow() -> None:
        while not engine._turns._waiting:
            pass
        followers = [threading.Thread(target=engine.write, args=(_add(n),)) for n in range(3)]
        for follower in followers:
            follower.start()
        while len(engine._turns._waiting) < 4:
            pass
        go_on.set()
        for follower in followers:
            follower.join()

    holder = threading.Thread(target=engine.write, args=(hold,))
    holder.start()
    assert started.wait(120)
    crowd = threading.Thread(target=follow)
    crowd.start()
    with pytest.raises(KeyboardInterrupt):
        engine.write(lambda tx: signal.raise_signal(signal.SIGINT))
    crowd.join()
    holder.join()

    assert _numbers(engine) == [0, 1, 2]


def test_a_thread_interrupted_while_it_waits_leaves_the_line(engine: Engine) -> None:
    started, go_on = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        started.set()
        assert go_on.wait(120)

    leader = threading.Thread(target=engine.write, args=(hold,))
    leader.start()
    assert started.wait(120)
    main = threading.main_thread().ident
    assert main is not None
    interrupter = threading.Thread(target=_interrupt_when_waiting, args=(engine, main))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        engine.write(_add(1))
    go_on.set()
    leader.join()
    interrupter.join()
    engine.write(_add(2))

    assert _numbers(engine) == [2]


def _interrupt_when_waiting(engine: Engine, thread: int) -> None:
    while not engine._turns._waiting:
        pass
    # Python may miss a signal that comes just before it blocks, as a user's first Ctrl-C: press again.
    while engine._turns._waiting:
        signal.pthread_kill(thread, signal.SIGINT)
        time.sleep(0.1)


def test_a_leader_begins_once_all_who_shared_the_last_commit_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing but the arrival of the last one ends its wait in time.
    monkeypatch.setattr("postroad.engine.transaction._NEXT_ARRIVAL", 1_000.0)
    turns, requests = Turns(), [Request(lambda _: None, durable=True) for _ in range(4)]
    turns._active = 4
    shared: list[int] = []
    threads = [threading.Thread(target=_take_part, args=(turns, request, shared)) for request in requests]

    threads[0].start()
    eventually(lambda: turns.writer is requests[0])
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert shared == [4]
    assert not any(request.waits or request.group for request in requests)


def _take_part(turns: Turns, request: Request, shared: list[int]) -> None:
    if turns.join(request):
        shared.append(len(request.group))
        for each in request.group:
            each.finished = True
    turns.finish(request)


def test_those_behind_one_that_was_interrupted_are_woken_all_the_same() -> None:
    turns, requests = Turns(), [Request(lambda _: None, durable=True) for _ in range(6)]
    assert turns.join(requests[0])
    woken: list[Request] = []
    threads = [threading.Thread(target=_follow, args=(turns, request, woken)) for request in requests[1:]]
    for thread in threads:
        thread.start()
    eventually(lambda: len(turns._waiting) == 5)
    turns._take(requests[0])

    # As Ctrl-C leaves them: they are done, but their threads no longer wait.
    for each in requests:
        each.finished = True
    turns.finish(requests[2])
    turns.finish(requests[4])
    turns.finish(requests[0])

    eventually(lambda: {requests[1], requests[3], requests[5]} <= set(woken))
    for each in (requests[2], requests[4]):
        assert each.lock is not None
        each.lock.release()
    for thread in threads:
        thread.join()


def _follow(turns: Turns, request: Request, woken: list[Request]) -> None:
    turns.join(request)
    woken.append(request)
    turns.finish(request)


def test_a_block_commits_all_its_writes_or_none(engine: Engine) -> None:
    with pytest.raises(RuntimeError), engine.transaction():
        engine.write(_add(1))
        engine.write(_add(2))
        raise RuntimeError
    with engine.transaction():
        engine.write(_add(3))
        engine.write(_add(4))

    assert _numbers(engine) == [3, 4]


def test_an_error_raised_in_a_transaction_keeps_its_cause(engine: Engine) -> None:
    cause = KeyError("missing")

    def fail(_: Transaction) -> None:
        raise ValueError("wrong") from cause

    with pytest.raises(ValueError, match="wrong") as in_block, engine.transaction():
        raise ValueError("wrong") from cause
    with pytest.raises(ValueError, match="wrong") as joined, engine.transaction():
        engine.write(fail)
    with pytest.raises(ValueError, match="wrong") as shared:
        engine.write(fail)

    assert [caught.value.__cause__ for caught in (in_block, joined, shared)] == [cause] * 3


def test_a_closed_engine_says_so(engine: Engine) -> None:
    engine.close()

    with pytest.raises(ConfigurationError, match="closed"):
        engine.write(_add(1))


def test_an_ack_that_waits_while_the_engine_is_closed_is_told_so(engine: Engine) -> None:
    started, go_on = threading.Event(), threading.Event()
    refused: list[str] = []

    def hold(tx: Transaction) -> None:
        started.set()
        assert go_on.wait(120)

    def ack() -> None:
        with pytest.raises(ConfigurationError) as caught:
            engine.write(_add(1), durable=False)
        refused.append(str(caught.value))

    holder = threading.Thread(target=engine.write, args=(hold,), kwargs={"durable": False}, daemon=True)
    # A close needs the disk, and is served before those who do not.
    behind = [threading.Thread(target=work, daemon=True) for work in (ack, engine.close)]
    holder.start()
    assert started.wait(120)
    for number, thread in enumerate(behind, start=1):
        thread.start()
        eventually(partial(_are_waiting, engine, number))
    go_on.set()
    for thread in (holder, *behind):
        thread.join(20)

    assert ["is closed" in text for text in refused] == [True]


def _are_waiting(engine: Engine, number: int) -> bool:
    return len(engine._turns._waiting) == number
