"""What a bus publishes, a consumer handles: as the typed event, or as a domain event by its name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.platform.events import OrderPlaced, OrderShipped
from tests.waiting import eventually

from postroad import Backend, Queue, QueueSpec
from postroad.bus import current_context
from postroad.inbox import Consumer, DomainEvent, Inbox


@pytest.fixture
def queue(backend: Backend, topic: str) -> Queue:
    queue = backend.create_queue(QueueSpec(f"{topic}-ledger"))
    backend.topic(topic).subscribe(queue)
    return queue


def test_a_class_among_the_types_makes_the_handler_get_its_instances(
    backend: Backend, topic: str, queue: Queue, inbox: Inbox
) -> None:
    seen: list[Any] = []
    consumer = Consumer(
        queue,
        lambda event, connection: seen.append((event, current_context())),
        name="ledger",
        inbox=inbox,
        types=[OrderPlaced],
    )
    bus = backend.bus(topic, "publisher")

    bus.publish(OrderPlaced("A-1", 7), key="A-1")
    bus.publish(OrderShipped("A-1"))

    ignored = 0
    while not (seen and ignored):
        ignored += consumer.run_once(wait=1.0).ignored
    ((event, context),) = seen
    assert event == OrderPlaced("A-1", 7)
    assert context.envelope.key == "A-1"
    assert context.envelope.publisher_id == bus.publisher_id


@pytest.mark.parametrize(("key", "keys"), [("A-1", {"key": "A-1"}), (None, {})])
def test_a_name_among_the_types_makes_the_handler_get_a_domain_event(
    backend: Backend, topic: str, queue: Queue, inbox: Inbox, key: str | None, keys: dict[str, str]
) -> None:
    seen: list[DomainEvent] = []
    consumer = Consumer(
        queue, lambda event, connection: seen.append(event), name="ledger", inbox=inbox, types=["shop.*"]
    )

    result = backend.bus(topic, "publisher").publish(OrderPlaced("A-1", 7), key=key)

    eventually(lambda: consumer.run_once(wait=1.0).handled)
    (event,) = seen
    assert (event.type, event.key, event.event_id) == ("shop.placed", keys, result.event_id)
    assert event.payload == {"order_id": "A-1", "number": 7}
