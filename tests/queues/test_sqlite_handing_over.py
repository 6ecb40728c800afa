"""A send of this process leases to receivers that wait in it, without reading what it has just written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

import postroad
from postroad import Backend, Delivery, OutgoingMessage, Queue, QueueSpec
from postroad.queues.sqlite.claims import Parking
from postroad.queues.sqlite.state import QueueState, write_spec


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{tmp_path / 'file.db'}") as opened:
        yield opened


@pytest.fixture
def queue(backend: Backend) -> Queue:
    return backend.create_queue(QueueSpec("orders"))


class Receiver:
    """A thread that waits for messages."""

    def __init__(self, queue: Queue) -> None:
        self.found: list[Delivery] = []
        self._queue = queue
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        inner: Any = queue
        parking, queue_id = inner.inner._store.claimer.parking, inner.inner.id
        eventually(lambda: queue_id in parking._waiters)

    def bodies(self) -> list[bytes]:
        self._thread.join()
        return [delivery.body for delivery in self.found]

    def _run(self) -> None:
        self.found = self._queue.receive(max_messages=10, wait=20)


def test_a_receiver_that_waits_gets_the_whole_batch_in_order(queue: Queue) -> None:
    receiver = Receiver(queue)

    queue.send([OutgoingMessage(body, attributes={"n": body}) for body in "abc"])

    assert receiver.bodies() == [b"a", b"b", b"c"]
    assert [dict(delivery.attributes) for delivery in receiver.found] == [{"n": "a"}, {"n": "b"}, {"n": "c"}]
    assert all(result.ok for result in queue.ack(receiver.found))
    assert queue.stats().visible == queue.stats().in_flight == 0


def test_a_delayed_message_of_the_batch_is_not_handed_over(queue: Queue) -> None:
    receiver = Receiver(queue)

    queue.send([OutgoingMessage("now"), OutgoingMessage("later", delay=600), OutgoingMessage("now too")])

    assert receiver.bodies() == [b"now", b"now too"]
    assert (queue.stats().in_flight, queue.stats().delayed) == (2, 1)


def test_what_is_too_much_for_one_receiver_is_left_for_the_next(queue: Queue) -> None:
    receiver = Receiver(queue)

    queue.send([OutgoingMessage(f"{number:02d}") for number in range(13)])
    left = queue.receive(max_messages=10)

    assert receiver.bodies() == [f"{number:02d}".encode() for number in range(10)]
    assert [delivery.body for delivery in left] == [b"10", b"11", b"12"]


def test_a_receiver_that_begins_to_wait_behind_a_send_is_woken_by_its_commit(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(queue)
    # The send looked before the receiver was there.
    monkeypatch.setattr(Parking, "has_waiting", lambda *_: False)

    queue.send([OutgoingMessage("first")])

    assert receiver.bodies() == [b"first"]


def test_nothing_is_handed_over_before_the_commit_of_a_transaction(backend: Backend, queue: Queue) -> None:
    receiver = Receiver(queue)

    with backend.transaction():
        queue.send([OutgoingMessage("first")])
        queue.send([OutgoingMessage("second")])
        before = list(receiver.found)

    assert before == []
    assert receiver.bodies() == [b"first", b"second"]


def test_nothing_is_handed_over_when_the_transaction_fails(backend: Backend, queue: Queue) -> None:
    receiver = Receiver(queue)

    with pytest.raises(ZeroDivisionError), backend.transaction():
        queue.send([OutgoingMessage("never")])
        raise ZeroDivisionError
    queue.send([OutgoingMessage("afterwards")])

    assert receiver.bodies() == [b"afterwards"]


def test_a_queue_deleted_in_the_transaction_that_sent_to_it_is_served_no_more(backend: Backend, queue: Queue) -> None:
    with backend.transaction():
        queue.send([OutgoingMessage("lost with its queue")])
        backend.delete_queue("orders")

    assert backend.queues() == []


@pytest.mark.parametrize(
    ("unwritten", "head", "expected"),
    [
        ([(7, None), (8, None)], 7, [7, 8]),
        ([(7, None), (8, None)], 8, [8]),
        ([(7, None), (8, None)], 6, []),
        ([(7, None), (8, 3)], 7, []),
        ([(6, None), (8, None)], 8, []),
        ([], 9, []),
    ],
    ids=["all", "behind one that was taken", "something older waits", "one was moved here", "a hole", "nothing"],
)
def test_only_an_unbroken_row_of_new_messages_is_taken_unread(
    unwritten: list[tuple[int, int | None]], head: int, expected: list[int]
) -> None:
    state = QueueState((1, b"orders", write_spec(QueueSpec("orders")).encode(), 9, head, 0, 0))
    state.unwritten = [(row_id, 0, None, None, origin, None, b"", None, 0) for row_id, origin in unwritten]

    taken = state.take_unread(10)

    assert [row[0] for row in taken] == expected
    assert state.head == (9 if expected else head)
