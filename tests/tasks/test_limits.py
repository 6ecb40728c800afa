"""Numbers that are promised, at their edges."""

from __future__ import annotations

import pytest

import postroad
from postroad import OutgoingMessage
from postroad.tasks import DeadLetterHandler, ensure_queues
from postroad.tasks.child_output import Activity, Echo, Lines, Reported, Tail
from postroad.testing.clock import FakeClock


def test_of_what_a_child_printed_the_last_twenty_lines_are_kept() -> None:
    tail = Tail()
    for number in range(100):
        tail.feed(f"line {number}\n".encode())

    assert tail.lines() == tuple(f"line {number}" for number in range(80, 100))


def test_of_what_a_child_printed_only_the_last_64_kib_are_looked_at() -> None:
    tail = Tail()

    tail.feed(b"early\n" + b"\n" * 65_530)
    kept = tail.lines()
    tail.feed(b"\n" * 6)

    assert (kept, tail.lines()) == (("early",), ())


def test_what_names_no_task_is_looked_at_again_after_a_quarter_of_an_hour() -> None:
    clock = FakeClock()
    with postroad.connect("memory://", clock=clock) as backend:
        ensure_queues(backend)
        letters = backend.queue("tasks-dlq")
        letters.send([OutgoingMessage("not a task")])

        DeadLetterHandler(backend).run_once()

        clock.advance(899)
        assert letters.stats().visible == 0
        clock.advance(2)
        assert letters.stats().visible == 1


def test_an_activity_needs_no_more_than_its_type() -> None:
    lines = Lines(1_000)

    assert lines.feed(b'{"lastActivity": {"type": "waiting"}}\n') == [Reported(Activity("waiting"))]
    assert lines.feed(b'{"lastActivity": {"stepName": "x", "timestamp": 1}}\n') == []


def test_a_flood_of_short_lines_costs_little_and_says_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    echo = Echo("r")

    for _ in range(100):
        echo.feed(b"y\n" * 32_768)
    echo.end()

    printed = capfd.readouterr().err.splitlines()
    assert printed[0] == "r: y"
    assert len(printed) < 20_000
    assert any("bytes not shown" in line for line in printed)
