"""Where a handler failed: the last lines of its traceback, kept until its message is settled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from postroad import Backend, BusConfig, Delivery, NonRetryable, OutgoingMessage, QueueSpec, connect, event
from postroad.dashboard import failure_of
from postroad.engine import one
from postroad.journal import Step
from postroad.operations import failure_groups, redrive, why
from postroad.queues import MessageHistory
from postroad.queues.sqlite import SQLiteQueues, state
from postroad.receiving import Ack, Receiver, explain
from postroad.testing.clock import FakeClock

BOOKED = 'ValueError: no [ledger.py:book]\nTraceback (most recent call last):\n  File "ledger.py", line 3, in book\n'


@event(name="tracebacks.placed")
class Placed:
    order_id: str


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with connect(f"sqlite:///{tmp_path}/postroad.db", clock=FakeClock()) as backend:
        backend.create_queue(QueueSpec("dead"))
        backend.create_queue(QueueSpec("jobs", dead_letter="dead", max_receives=3))
        yield backend


def received(backend: Backend, queue: str = "jobs") -> Delivery:
    [delivery] = backend.queue(queue).receive()
    return delivery


def send(backend: Backend) -> str:
    [sent] = backend.queue("jobs").send([OutgoingMessage("a")])
    assert sent.message_id is not None
    return sent.message_id


def steps(backend: Backend, name: object) -> list[Step]:
    return list(why(backend, str(name), tenant="default", app="postroad").steps)


def lines(backend: Backend, message_id: str) -> list[str]:
    history = backend.message_history()
    assert history is not None
    return history.traceback(message_id)


def stored(backend: Backend) -> int:
    store = cast(SQLiteQueues, backend.message_history())
    return int(store.engine.read(lambda each: one(each, "SELECT count(*) FROM traceback"))[0])


def book(amount: int) -> None:
    raise NonRetryable(f"{amount} is negative, token=pr_0123456789abcdef0123456789abcdef")


def test_the_story_of_an_event_shows_the_frames_from_the_handler_on(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path}/live.db") as live:
        bus = live.bus("orders", group="billing", config=BusConfig(wait_time_seconds=0))

        @bus.on(Placed)
        def bill(placed: Placed) -> None:
            book(-3)

        event_id = bus.publish(Placed("A-1")).event_id
        bus.receive_once()
        story = why(live, str(event_id), tenant="default", app="postroad")
        failure = failure_of(story)
        [group] = failure_groups(live, "orders--billing--dead").groups

    found = story.steps[-1].traceback
    assert story.steps[-1].what == "dead"
    assert isinstance(found, list)
    assert found[0].endswith("in bill")
    assert found[-1].endswith("NonRetryable: -3 is negative, token=***")
    assert failure is not None
    assert (failure.type, failure.message) == ("NonRetryable", "-3 is negative, token=***")
    assert (failure.handler, failure.traceback) == ("bill", found)
    assert group.error == "NonRetryable: -3 is negative, token=*** [test_tracebacks.py:book]"


def test_a_receiver_of_a_queue_keeps_it_between_attempts(backend: Backend) -> None:
    message_id = send(backend)

    def decide(delivery: Delivery) -> Ack:
        book(-1)
        return Ack()

    Receiver(backend.queue("jobs"), decide).run_once()

    assert lines(backend, message_id)[-1].endswith("-1 is negative, token=***")


def test_a_message_that_is_settled_keeps_none(backend: Backend) -> None:
    message_id = send(backend)
    backend.queue("jobs").release([received(backend)], error=BOOKED)
    assert lines(backend, message_id) == ['  File "ledger.py", line 3, in book']

    backend.queue("jobs").ack([received(backend)])

    assert [step.what for step in steps(backend, message_id)][-2:] == ["failed", "acked"]
    assert all(not step.lines for step in steps(backend, message_id))
    cast(SQLiteQueues, backend.message_history()).sweep()
    assert stored(backend) == 0


def test_a_dead_letter_keeps_it_also_when_it_is_redriven(backend: Backend) -> None:
    message_id = send(backend)
    backend.queue("jobs").reject([received(backend)], reason="handler_failed", error=BOOKED)
    cast(SQLiteQueues, backend.message_history()).sweep()
    assert steps(backend, message_id)[-1].lines == ['  File "ledger.py", line 3, in book']

    redrive(backend, "dead", reason="mended", actor="test")
    cast(SQLiteQueues, backend.message_history()).sweep()

    assert len(lines(backend, message_id)) == 1
    backend.queue("jobs").ack([received(backend)])
    assert lines(backend, message_id) == []


def test_a_message_that_failed_too_often_has_it_where_it_failed_and_one_that_is_rejected_where_it_died(
    backend: Backend,
) -> None:
    often, rejected = send(backend), send(backend)
    queue = backend.queue("jobs")
    for _ in range(2):
        queue.release(queue.receive(), error=BOOKED)
    first, second = queue.receive()
    queue.release([first], error=BOOKED)
    queue.reject([second], reason="handler_failed", error=BOOKED)
    queue.receive()

    found = {name: why(backend, name, tenant="default", app="postroad") for name in (often, rejected)}

    assert [(step.what, bool(step.lines)) for step in found[often].steps if not step.ok] == [
        *(("failed", False), ("failed", False), ("failed", True), ("dead", False))
    ]
    assert [(step.what, bool(step.lines)) for step in found[rejected].steps if not step.ok] == [
        *(("failed", False), ("failed", False), ("dead", True))
    ]
    shown = [failure_of(story) for story in found.values()]
    assert [failure.count for failure in shown if failure is not None] == [3, 3]
    assert all(failure is not None and failure.traceback for failure in shown)


def test_it_is_the_last_one_in_twenty_short_lines_without_secrets_and_control_characters(backend: Backend) -> None:
    message_id = send(backend)
    backend.queue("jobs").release([received(backend)], error=BOOKED)
    long = "\n".join([f"  line {number} \x1b[31m {'x' * 500}" for number in range(40)] + ["E: password=hunter22"])

    backend.queue("jobs").release([received(backend)], error=f"E: no\nTraceback (most recent call last):\n{long}")

    found = lines(backend, message_id)
    assert len(found) == 20
    assert found[-1] == "E: password=***"
    assert all(len(line) <= 200 and line.isprintable() for line in found)
    assert [step.detail for step in steps(backend, message_id) if not step.ok] == [
        "ValueError: no [ledger.py:book]",
        "E: no",
    ]


def test_only_the_newest_are_kept(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_TRACEBACKS_KEPT", 10)
    queue = backend.queue("jobs")
    queue.send([OutgoingMessage("a") for _ in range(64)])

    queue.release(queue.receive(max_messages=64), after=60, error=BOOKED)

    assert stored(backend) == 10


def test_an_error_that_was_never_raised_is_explained_without_a_traceback() -> None:
    assert explain(ValueError("no")) == "ValueError: no"


def test_the_history_of_a_message_of_another_file_has_none(backend: Backend) -> None:
    assert isinstance(backend.message_history(), MessageHistory)
    assert lines(backend, "5aae5204-db9a-8487-8000-020000000001") == []
    assert lines(backend, "no id") == []


def test_an_error_of_several_lines_reads_alike_where_it_failed_and_where_it_died(backend: Backend) -> None:
    message_id, queue = send(backend), backend.queue("jobs")
    error = BOOKED.replace("no", "no\nsuch book", 1)
    queue.release([received(backend)], error=error)

    queue.reject([received(backend)], reason="handler_failed", error=error)

    story = why(backend, message_id, tenant="default", app="postroad")
    details = [step.detail for step in story.steps if not step.ok]
    assert details == ["ValueError: no such book [ledger.py:book]"] * 2
    failure = failure_of(story)
    assert failure is not None
    assert (failure.message, failure.count) == ("no such book", 2)
    assert story.summary.endswith("ValueError: no such book [ledger.py:book]")
