from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from postroad.engine.wakeup import CROWD, WakeupSocket


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
