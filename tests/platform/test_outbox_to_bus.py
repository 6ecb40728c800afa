"""What the outbox publishes, a bus handles as the typed event that was recorded."""

from __future__ import annotations

from collections.abc import Callable

from tests.platform.events import QUICK, OrderPlaced, received
from tests.waiting import eventually

from postroad import Backend
from postroad.bus import HandlingContext, current_context
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
    seen: list[OrderPlaced] = []
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, seen.append)
    place(OrderPlaced("A-1"))
    dispatch(topic).drain()
    handled = received(bus)
    place(OrderPlaced("A-2"))
    dispatch(topic).drain()
    again = received(bus)

    assert (handled, again) == ([OrderPlaced("A-1")], [OrderPlaced("A-2")])
    assert seen == [OrderPlaced("A-1"), OrderPlaced("A-2")]


def test_an_archive_keeps_the_form_and_replays_the_event(
    backend: Backend, topic: str, place: Callable[..., None], dispatch: MakeDispatcher
) -> None:
    if backend.url.startswith("memory"):
        return
    archive = backend.archive(topic)
    archive.start()
    place(OrderPlaced("A-1", 3))
    dispatch(topic).drain()

    eventually(lambda: list(archive.events()))
    found = list(archive.events())

    archive.stop()
    assert [entry.envelope.payload for entry in found] == [{"order_id": "A-1", "number": 3}]
