"""Ctrl-C, threads that cannot be started and closing, at the worst places of turns, parking and listening."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from postroad import connect
from postroad.engine.engine import Engine
from postroad.engine.transaction import Request, Transaction, Turns, one
from postroad.engine.wakeup import Listener, Listeners
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.queues.sqlite.claims import Parking, Waiter
from postroad.testing.clock import FakeClock

QUEUE = 1


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[Listeners]:
    opened = Listeners(tmp_path / "file.db", lambda: 0)
    yield opened
    opened.close()


def test_a_request_that_an_interrupted_leader_had_half_taken_is_done_once() -> None:
    turns = Turns()
    leader = Request(lambda _: None, durable=True)
    turns.join(leader)
    follower = Request(lambda _: None, durable=True)
    # As Ctrl-C leaves them between the two steps of taking.
    leader.group = [leader, follower]
    turns._waiting = [follower]

    turns.finish(leader)

    assert turns._waiting == [follower]
    assert turns.writer is follower


@pytest.fixture
def waiting() -> Iterator[tuple[Turns, Request, list[bool]]]:
    """Return turns, their leader, and what `join` returns to a thread that waits behind the leader."""
    turns, leader = Turns(), Request(lambda _: None, durable=False)
    assert turns.join(leader)
    other, joined = Request(lambda _: None, durable=True), list[bool]()
    thread = threading.Thread(target=lambda: joined.append(turns.join(other)), daemon=True)
    thread.start()
    eventually(lambda: turns._waiting == [other])
    yield turns, leader, joined
    thread.join(120)
    assert joined == [True]


def test_a_leader_that_is_interrupted_before_it_wakes_the_next_one_wakes_it_at_its_end(
    waiting: tuple[Turns, Request, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, leader, joined = waiting
    # As a receive that moves a message to the dead letters.
    leader.durable = leader.finished = True
    with monkeypatch.context() as patched:
        patched.setattr("postroad.engine.transaction._release", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            turns.pass_on(leader)

    turns.finish(leader)

    eventually(lambda: joined == [True])


def test_a_leader_that_is_interrupted_while_it_ends_its_turn_leaves_nobody_waiting(
    waiting: tuple[Turns, Request, list[bool]],
) -> None:
    turns, leader, joined = waiting
    turns._syncer, leader.durable, leader.finished = leader, True, True
    turns.pass_on(leader)
    turns._waiting = InterruptingList(turns._waiting)
    with pytest.raises(KeyboardInterrupt):
        turns.finish(leader)

    turns.finish(leader)

    eventually(lambda: joined == [True])


class InterruptingList(list[Request]):
    """A list that Ctrl-C interrupts when it is first walked through."""

    interrupted = False

    def __iter__(self) -> Iterator[Request]:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().__iter__()


class Interrupting(Transaction):
    """A transaction that Ctrl-C interrupts when an undo is added to it."""

    def after_rollback(self, action: Any) -> None:
        super().after_rollback(action)
        raise KeyboardInterrupt


def test_ctrl_c_while_a_fork_waits_for_another_threads_turn_leaves_the_parent_usable(tmp_path: Path) -> None:
    begun, interrupted, go_on = threading.Event(), threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(120)

    engine = Engine(tmp_path / "file.db")
    holder = threading.Thread(target=engine.write, args=(hold,), daemon=True)
    holder.start()
    assert begun.wait(120)
    main = threading.get_ident()
    interrupter = threading.Thread(target=_interrupt_when_waiting, args=(engine, main, interrupted))
    interrupter.start()

    # Python calls both around os.fork(), and drops what they raise.
    with pytest.raises(KeyboardInterrupt):
        try:
            engine.before_fork()
        finally:
            interrupted.set()
    interrupter.join()
    engine.after_fork_in_parent()
    go_on.set()

    holder.join(120)
    done = threading.Thread(target=engine.write, args=(lambda tx: None,), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
    assert engine.read(lambda connection: one(connection, "SELECT 1")) == (1,)
    engine.close()


def test_a_child_never_closes_what_ctrl_c_left_open_before_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    engine, other = Engine(tmp_path / "file.db"), Engine(tmp_path / "other.db")
    monkeypatch.setattr("postroad.engine.engine.close_pair", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.before_fork()
    monkeypatch.undo()
    other.before_fork()

    assert engine.after_fork_in_child() == (engine._writer, engine._reader)
    assert other.after_fork_in_child() == ()


def _interrupt_when_waiting(engine: Engine, thread: int, interrupted: threading.Event) -> None:
    eventually(lambda: bool(engine._turns._waiting))
    # Python may miss a signal that comes just before it blocks, as a user's first Ctrl-C: press again.
    while not interrupted.is_set():
        signal.pthread_kill(thread, signal.SIGINT)
        interrupted.wait(0.2)


@pytest.mark.parametrize("interrupted_in", ["noting", "leasing"])
def test_a_receiver_stays_parked_when_serving_it_is_interrupted(interrupted_in: str) -> None:
    connection: Any = None
    parking, waiter = Parking(), Waiter(Listener(), 1, None)
    parking.park(QUEUE, waiter)
    tx = Interrupting(connection) if interrupted_in == "noting" else Transaction(connection)

    with pytest.raises(KeyboardInterrupt):
        parking.serve(tx, QUEUE, _interrupted)
    tx.undo()

    assert waiter.state == "parked"
    assert list(parking._waiters[QUEUE]) == [waiter]


def test_a_receiver_that_was_interrupted_while_it_parked_leaves_nothing() -> None:
    parking, waiter = Parking(), Waiter(Listener(), 1, None)
    waiter.state = "parked"

    left = parking.withdraw(QUEUE, waiter)

    assert (left, str(waiter.state)) == ([], "away")


def test_what_is_known_of_other_processes_is_not_trusted_once_nobody_hears_them(listeners: Listeners) -> None:
    with listeners.listen("q1"):
        pass
    listeners.close()

    before = listeners.news

    assert listeners.news > before


def test_a_process_whose_listening_thread_could_not_start_hears_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'file.db'}"
    with connect(url) as here, connect(url) as there:
        queue = here.create_queue(QueueSpec("orders"))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            with pytest.raises(RuntimeError):
                queue.receive(wait=0.1)
        queue.receive()
        there.queue("orders").send([OutgoingMessage("here")])

        assert [delivery.body for delivery in queue.receive(wait=20)] == [b"here"]


def test_a_send_that_is_stored_does_not_fail_because_no_thread_can_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with connect(f"sqlite:///{tmp_path / 'file.db'}", clock=clock) as backend:
        queue = backend.create_queue(QueueSpec("orders.fifo", fifo=True, content_dedup=True))
        clock.advance(61)
        monkeypatch.setattr(threading.Thread, "start", _refuse)

        assert queue.send([OutgoingMessage("here", group="a")])[0].ok


def test_a_listening_thread_whose_start_was_interrupted_ends_quietly(
    listeners: Listeners, monkeypatch: pytest.MonkeyPatch, started: list[threading.Thread]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _started_and_interrupted(started))
        with pytest.raises(KeyboardInterrupt), listeners.listen("q1"):
            pytest.fail("it listens although it was interrupted")
    eventually(lambda: not listeners._has_listeners.is_set())

    listeners.close()

    (thread,) = started
    thread.join()


def test_one_thread_listens_after_the_start_of_the_first_was_interrupted(
    listeners: Listeners, monkeypatch: pytest.MonkeyPatch, started: list[threading.Thread]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _started_and_interrupted(started))
        with pytest.raises(KeyboardInterrupt), listeners.listen("q1"):
            pytest.fail("it listens although it was interrupted")

    with listeners.listen("q1") as listener:
        eventually(lambda: sum(each.name == "postroad-listeners" for each in threading.enumerate()) == 1)

        # The slow check wakes it: the thread has not seen the file's version before.
        assert listener.wait(120)


@pytest.fixture
def started() -> list[threading.Thread]:
    return []


def _started_and_interrupted(started: list[threading.Thread]) -> Callable[[threading.Thread], None]:
    start = threading.Thread.start

    def start_and_raise(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    return start_and_raise


def _interrupted(_: Waiter) -> Any:
    raise KeyboardInterrupt


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
