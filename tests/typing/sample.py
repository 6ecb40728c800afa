"""What a user's module looks like to a type checker; `make test` lets mypy and pyright read it."""

from __future__ import annotations

from decimal import Decimal
from typing import assert_type

import postroad
from postroad import AckResult, Backend, Delivery, Envelope, OutgoingMessage, Queue, QueueSpec, SendResult, codec, event


@event(name="typing.order-placed", version=1)
class OrderPlaced:
    order_id: str
    amount: Decimal


@event
class OrderPaid:
    order_id: str


def place(backend: Backend) -> list[SendResult]:
    """Send one event."""
    envelope = codec.wrap(OrderPlaced(order_id="A-1", amount=Decimal(1)), publisher_id="shop")
    assert_type(envelope, Envelope)
    return backend.queue("orders").send([OutgoingMessage(codec.encode(envelope))])


def handle(queue: Queue) -> list[AckResult]:
    """Receive and ack what is there."""
    deliveries = queue.receive(max_messages=10, wait=1.0)
    assert_type(deliveries, list[Delivery])
    return queue.ack(deliveries)


def main() -> None:
    """Everything together."""
    with postroad.connect("memory://") as backend:
        assert_type(backend, Backend)
        queue = backend.create_queue(QueueSpec("orders", dead_letter=None, visibility=30))
        assert_type(queue, Queue)
        assert all(sent.ok for sent in place(backend))
        assert all(settled.ok for settled in handle(queue))
        assert OrderPaid(order_id="A-1") == OrderPaid("A-1")
