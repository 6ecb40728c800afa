from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

import postroad
from postroad import OutgoingMessage, QueueSpec
from postroad.engine.wakeup import CROWD, Listeners, WakeupSocket
from postroad.queues import OverflowingQueue, Watchable


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[list[WakeupSocket]]:
    """As many listeners as make a crowd."""
    sockets = [WakeupSocket(tmp_path / "wake") for _ in range(CROWD)]
    for opened in sockets:
        opened.open()
    yield sockets
    for opened in sockets:
        opened.close()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[WakeupSocket]:
    opened = WakeupSocket(tmp_path / "wake")
    yield opened
    opened.close()


def test_a_crowd_is_woken(crowd: list[WakeupSocket], sender: WakeupSocket) -> None:
    sender.send(b"orders\njobs")

    assert [opened.listen(20) for opened in crowd] == [{b"orders", b"jobs"}] * CROWD
    sender.close()


def test_closing_sends_what_is_left(crowd: list[WakeupSocket], sender: WakeupSocket) -> None:
    for number in range(5):
        sender.send(f"{number}".encode())

    sender.close()

    assert [len(opened.listen(0)) for opened in crowd] == [5] * CROWD


def test_a_few_are_woken_before_the_call_returns(crowd: list[WakeupSocket], sender: WakeupSocket) -> None:
    crowd[0].close()

    sender.send(b"orders")

    assert [opened.listen(0) for opened in crowd[1:]] == [{b"orders"}] * (CROWD - 1)


@pytest.mark.timeout(60)
def test_closing_ends_both_threads_when_the_start_of_the_first_was_interrupted(
    crowd: list[WakeupSocket], sender: WakeupSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", start_and_interrupt)
        sender.send(b"orders")
    sender.send(b"jobs")

    sender.close()

    eventually(lambda: not any(thread.name == "postroad-wakeups" for thread in threading.enumerate()))


def test_a_crowd_is_woken_when_no_thread_can_be_started(
    crowd: list[WakeupSocket], sender: WakeupSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        sender.send(b"orders")

    assert [opened.listen(0) for opened in crowd] == [{b"orders"}] * CROWD


def test_a_watcher_that_raises_is_logged_and_hears_of_the_next_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'postroad.db'}"
    send = "import sys, postroad; postroad.connect(sys.argv[1]).queue('jobs').send([postroad.OutgoingMessage('one')])"
    calls: list[bool] = []

    def fail(changed: bool) -> None:
        calls.append(changed)
        raise ValueError("no such listener, password=hunter2")

    with postroad.connect(url) as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        plain = queue.inner if isinstance(queue, OverflowingQueue) else queue
        assert isinstance(plain, Watchable)
        with plain.watch(fail):
            subprocess.run([sys.executable, "-c", send, url], check=True)
            eventually(lambda: calls)
            heard = len(calls)
            subprocess.run([sys.executable, "-c", send, url], check=True)
            eventually(lambda: len(calls) > heard)
            (sent,) = queue.send([OutgoingMessage("two")])

    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert sent.ok
    assert {line["event"] for line in lines} == {"engine_watch_failed"}
    assert lines[0]["error"] == "ValueError: no such listener, password=*** [test_wakeup.py:fail]"


def _is_counting(listeners: Listeners) -> bool:
    """Return whether the news are those that others send: until they know this process, each look is news."""
    return listeners.news == listeners.news


def test_what_others_sent_while_nobody_listened_is_known_but_wakes_nobody(tmp_path: Path) -> None:
    ours, theirs = (Listeners(tmp_path / "postroad.db", lambda: 0) for _ in range(2))
    try:
        with ours.listen("q1"):
            pass
        eventually(lambda: not ours._has_listeners.is_set() and _is_counting(ours))
        theirs.wake(["q1"])
        theirs.wake_others()
        before = ours.news

        with ours.listen("q1") as listener:
            assert ours.news == before + 1
            assert not listener.wait(0.05)
            theirs.wake(["q1"])
            theirs.wake_others()
            assert listener.wait(120)
    finally:
        theirs.close()
        ours.close()
