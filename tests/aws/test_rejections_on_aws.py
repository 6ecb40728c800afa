"""Rejecting by receipt what SQS holds: the receipt alone does not have the message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

import postroad
from postroad.http import access
from postroad.http.access import LeasedMessages
from postroad.queues import Delivery, OutgoingMessage, Queue, QueueSpec


def by_receipt(delivery: Delivery) -> Delivery:
    """What the server knows of a delivery when its caller settles it."""
    never = datetime.fromtimestamp(0, UTC)
    return Delivery("", b"", {}, None, delivery.receipt, 1, never, never, None)


def orders(backend: postroad.Backend, unique: Callable[[str], str]) -> tuple[Queue, Queue]:
    dead = backend.create_queue(QueueSpec(unique("dead")))
    return backend.create_queue(QueueSpec(unique("orders"), dead_letter=dead.name)), dead


def test_a_message_of_sqs_is_rejected_whole_and_one_that_is_not_remembered_stays(
    ministack_url: str, unique: Callable[[str], str]
) -> None:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        queue, dead = orders(backend, unique)
        queue.send([OutgoingMessage("known"), OutgoingMessage("unknown")])
        deliveries = sorted(queue.receive(max_messages=10, wait=5), key=lambda each: each.body)
        known, unknown = deliveries
        remembered = LeasedMessages()
        remembered.remember(queue, [known])

        results = remembered.reject(queue, [by_receipt(unknown), by_receipt(known)], reason="no", error="KeyError: 7")

        [letter] = dead.receive(wait=5)
        marker = msgspec.json.decode(letter.attributes["DeadLetter"])
        assert [result.ok for result in results] == [False, True]
        assert "Release it" in str(getattr(results[0].error, "remedy", ""))
        assert (letter.body, marker["reason"], marker["error"]) == (b"known", "no", "KeyError: 7")
        assert queue.ack([unknown])[0].ok


def test_what_is_remembered_is_bounded(ministack_url: str, unique: Callable[[str], str]) -> None:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        queue, _ = orders(backend, unique)
        now = datetime.now(UTC)
        remembered = LeasedMessages()
        for number in range(access.MAX_DELIVERIES + 5):
            remembered.remember(queue, [Delivery("", b"x" * 100, {}, None, str(number), 1, now, now, None)])
        remembered.remember(queue, [Delivery("", b"x" * access.MAX_BYTES, {}, None, "large", 1, now, now, None)])

        assert list(remembered._deliveries) == ["large"]
