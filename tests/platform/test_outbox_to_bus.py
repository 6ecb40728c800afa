"""What the outbox publishes, a bus handles as the typed event that was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.platform.events import QUICK, OrderPlaced, OrderShipped, received
from tests.waiting import eventually

from postroad import Backend, Envelope, codec
from postroad.bus import HandlingContext, current_context
from postroad.bus.tail import message_for, tail
from postroad.events import DomainEvent
from postroad.outbox import OutboxDispatcher

MakeDispatcher = Callable[..., OutboxDispatcher]


def test_a_handler_gets_the_typed_event_once_with_its_envelope(
    backend: Backend, topic: str, place: Callable[..., None], dispatch: MakeDispatcher
) -> None:
    seen: list[tuple[OrderPlaced, HandlingContext | None]] = []
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: seen.append((event, current_context())))
    bus.start_receiver()
    place(OrderPlaced("A-1", 7))

    report = dispatch(topic).drain()

    eventually(lambda: seen)
    bus.stop_receiver()
    ((event, context),) = seen
    assert report.sent == 1
    assert event == OrderPlaced("A-1", 7)
    assert context is not None
    assert (context.envelope.key, context.envelope.keys) == ("A-1", {"key": "A-1"})
    assert (context.envelope.publisher_id, context.envelope.event_type) == ("shop", "shop.placed")


def test_on_a_fifo_topic_the_events_of_a_key_arrive_in_order(
    backend: Backend, topic: str, place: Callable[..., None], dispatch: MakeDispatcher
) -> None:
    seen: list[tuple[str, int]] = []
    bus = backend.bus(topic, "billing", fifo=True, config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: seen.append((event.order_id, event.number)))
    bus.start_receiver()
    place(*[OrderPlaced(f"A-{number % 3}", number) for number in range(30)])

    dispatch(f"{topic}.fifo", fifo=True).drain()

    eventually(lambda: len(seen) == 30)
    bus.stop_receiver()
    for key in range(3):
        mine = [number for order_id, number in seen if order_id == f"A-{key}"]
        assert mine == sorted(mine)


def test_an_event_that_comes_in_both_forms_is_handled_once(
    backend: Backend, topic: str, place: Callable[..., None], dispatch: MakeDispatcher
) -> None:
    seen: list[Envelope] = []
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: seen.append(envelope_here()))
    place(OrderPlaced("A-1"))
    dispatch(topic).drain()
    handled = received(bus)

    send(backend, topic, seen[0], codec.encode(seen[0]))
    eventually(lambda: bus.receive_once() or bus.health().duplicates == 1)

    assert handled == [OrderPlaced("A-1")]
    assert (len(seen), bus.health().duplicates) == (1, 1)


def test_an_own_event_that_comes_back_in_the_other_form_is_an_echo(backend: Backend, topic: str) -> None:
    seen: list[OrderPlaced] = []
    bus = backend.bus(topic, config=QUICK)
    bus.subscribe(OrderPlaced, seen.append)
    bus.receive_once()
    result = bus.publish(OrderPlaced("A-1"))
    assert result.event_id is not None
    event = DomainEvent("shop.placed", {}, {"order_id": "A-1", "number": 0}, event_id=result.event_id)

    send(backend, topic, event.to_envelope(), event.to_json())
    bus.publish(OrderShipped("A-1"))
    eventually(lambda: bus.receive_once() or bus.health().unhandled == 1)

    assert seen == [OrderPlaced("A-1")]


def test_an_archive_keeps_the_form_and_replays_the_event(
    backend: Backend, topic: str, place: Callable[..., None], dispatch: MakeDispatcher
) -> None:
    replayed: list[OrderPlaced] = []
    archive = backend.archive(topic)
    place(OrderPlaced("A-1", 3))
    dispatch(topic).drain()
    backend.bus(topic, "publisher").publish(OrderPlaced("A-2", 4))

    eventually(lambda: archive.run_once() + len(list(archive.events())) >= 2)
    found = {entry.envelope.payload["order_id"]: json.loads(entry.body) for entry in archive.events()}
    report = archive.replay(replayed.append)

    assert sorted(found["A-1"]) == ["envelope", "key", "payload"]
    assert found["A-2"]["event_type"] == "shop.placed"
    assert (report.replayed, report.failed) == (2, 0)
    assert sorted(replayed, key=lambda event: event.number) == [OrderPlaced("A-1", 3), OrderPlaced("A-2", 4)]


def test_a_tail_shows_the_service_whose_outbox_published_the_event(
    backend: Backend, topic: str, place: Callable[..., None], dispatch: MakeDispatcher
) -> None:
    backend.bus(topic, "billing", config=QUICK)
    place(OrderPlaced("A-1", 3))
    dispatch(topic).drain()

    (envelope,) = tail(backend, topic, "billing", limit=1, timeout=30)

    assert envelope is not None
    assert (envelope.publisher_id, envelope.keys) == ("shop", {"key": "A-1"})


def envelope_here() -> Envelope:
    context = current_context()
    assert context is not None
    return context.envelope


def send(backend: Backend, topic: str, envelope: Envelope, body: bytes) -> None:
    """Publish a body to the topic, as a publisher of another kind does."""
    (result,) = backend.topic(topic).publish([message_for(envelope, body, fifo=False)])
    assert result.ok
