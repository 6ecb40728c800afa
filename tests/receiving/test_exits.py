"""A function of the user's own that exits ends no thread of a receiver: it goes on with other messages."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import pytest
from tests.waiting import NEVER_SECONDS, eventually

from postroad import Backend, Delivery, OutgoingMessage, Queue, QueueSpec
from postroad.receiving import Ack, Outcome, Receiver, Reject


def exits(*_: object, **__: object) -> NoReturn:
    raise SystemExit("the user's own function")


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("is_async", [False, True])
def test_dead_letters_that_exit_cost_their_message_an_attempt_and_others_are_handled(
    queue: Queue, concurrency: int, is_async: bool
) -> None:
    good = threading.Event()

    def decide(delivery: Delivery) -> Outcome:
        if delivery.body == b"bad":
            return Reject("bad")
        good.set()
        return Ack()

    async def adecide(delivery: Delivery) -> Outcome:
        return decide(delivery)

    dead_letters: Any = exits
    receiver = Receiver(
        queue, adecide if is_async else decide, concurrency=concurrency, dead_letters=dead_letters, batch=1
    )
    queue.send([OutgoingMessage("bad")] * 3 + [OutgoingMessage("good")])
    receiver.start()

    assert good.wait(NEVER_SECONDS)
    assert receiver.stop()


def test_leases_are_extended_again_after_a_callback_that_exits(backend: Backend) -> None:
    brief = backend.create_queue(QueueSpec("brief", visibility=2))
    extended: list[Delivery] = []
    handled, ended = [], threading.Event()

    def decide(delivery: Delivery) -> Outcome:
        handled.append(delivery)
        ended.wait(NEVER_SECONDS)
        return Ack()

    def on_extended(delivery: Delivery) -> None:
        extended.append(delivery)
        exits()

    receiver = Receiver(brief, decide, concurrency=2, on_extended=on_extended)
    brief.send([OutgoingMessage("slow")])
    receiver.start()

    eventually(lambda: len(extended) > 2)
    ended.set()
    receiver.stop()
    assert len(handled) == 1
