"""Receiving: what is acked, what comes again, what is recognised."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Identified, Placed, Shipped
from tests.waiting import eventually

from postroad import EventRegistry, OutgoingMessage, Queue, codec
from postroad.bus import HandlingContext, PublishResult, RemoteEventBus, current_context
from postroad.bus.endpoints import Outlet, given_queue
from postroad.errors import TransportError
from postroad.queues.markers import read_dead
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing import FakeClock

REMOTE = replace(QUICK, local_dispatch=False)


def held(queue: Queue) -> int:
    stats = queue.stats()
    return stats.visible + stats.in_flight + stats.delayed


class Failing:
    """A handler that fails so many times, and counts its calls."""

    def __init__(self, times: int = 10**9) -> None:
        self.calls = 0
        self.times = times

    def __call__(self, event: object) -> None:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(f"attempt {self.calls}")


def test_a_received_event_is_handled_and_acked(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    make_bus(queue).publish(Placed(7))
    receiver = make_bus(queue)
    receiver.subscribe(Placed, seen.append)

    handled = receiver.receive_once()

    assert handled == seen == [Placed(7)]
    assert held(queue) == 0
    assert receiver.health().handled == 1


def test_a_handler_sees_the_context_of_the_delivery(make_bus: MakeBus, queue: Queue) -> None:
    contexts: list[HandlingContext | None] = []
    published = make_bus(queue).publish(Placed())
    receiver = make_bus(queue)
    receiver.subscribe(Placed, lambda _: contexts.append(current_context()))

    receiver.receive_once()

    (context,) = contexts
    assert context is not None
    assert (context.remote, context.receive_count, context.replayed) == (True, 1, False)
    assert context.envelope.event_id == published.event_id
    assert current_context() is None


def test_the_own_event_is_recognised_and_not_handled_twice(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue)
    bus.subscribe(Placed, seen.append)
    bus.publish(Placed())

    handled = bus.receive_once()

    assert (handled, seen, held(queue)) == ([], [Placed()], 0)


@pytest.mark.parametrize(("echo", "calls", "left"), [("settle", 1, 0), ("dispatch", 2, 0), ("release", 1, 1)])
def test_an_echo_is_settled_dispatched_or_left(
    make_bus: MakeBus, queue: Queue, echo: Any, calls: int, left: int
) -> None:
    seen: list[object] = []
    bus = make_bus(queue, replace(QUICK, echo=echo))
    bus.subscribe(Placed, seen.append)
    bus.publish(Placed())

    bus.receive_once()

    assert (len(seen), held(queue)) == (calls, left)


def test_an_own_event_without_a_local_handler_is_treated_like_anybodys(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    bus.publish(Placed())
    seen: list[object] = []
    bus.subscribe(Placed, seen.append)

    assert bus.receive_once() == seen == [Placed()]


def test_an_own_event_that_failed_here_is_handled_by_the_failed_handler_again(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    once = Failing(times=1)
    bus = make_bus(queue)
    bus.subscribe(Placed, seen.append)
    bus.subscribe(Placed, once)
    bus.publish(Placed())

    handled = bus.receive_once()

    assert handled == [Placed()]
    assert (len(seen), once.calls) == (1, 2)


def test_an_own_event_is_handled_on_receipt_when_local_dispatch_is_off(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, REMOTE)
    bus.subscribe(Placed, seen.append)
    bus.publish(Placed())

    assert bus.receive_once() == seen == [Placed()]


def test_an_event_that_nobody_handles_is_released_and_finally_a_dead_letter(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    bus = make_bus(queue)
    bus.publish(Placed())

    rounds = [bus.receive_once() for _ in range(2)]
    after_two = held(queue)
    bus.receive_once()

    assert (rounds, after_two, held(queue)) == ([[], []], 1, 0)
    (letter,) = queues.queue("work-dead").peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert marker.reason == "unhandled"
    assert bus.health().unhandled == 3


@pytest.mark.parametrize(("unhandled", "left", "dead"), [("ack", 0, 0), ("dead_letter", 0, 1), ("release", 1, 0)])
def test_what_nobody_handles_is_acked_released_or_buried(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues, unhandled: Any, left: int, dead: int
) -> None:
    bus = make_bus(queue, replace(QUICK, unhandled=unhandled))
    bus.publish(Placed())

    bus.receive_once()

    assert (held(queue), held(queues.queue("work-dead"))) == (left, dead)


def test_a_filter_on_receipt_leaves_the_event_to_others(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    make_bus(queue).publish(Placed())
    receiver = make_bus(queue, replace(QUICK, event_type_blocklist=frozenset({Placed})))
    receiver.subscribe(Placed, seen.append)

    receiver.receive_once()

    assert (seen, held(queue)) == ([], 1)


def test_one_failing_handler_keeps_the_message_and_runs_alone_again(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    twice = Failing(times=2)
    make_bus(queue).publish(Placed())
    receiver = make_bus(queue, replace(QUICK, max_receives=5))
    receiver.subscribe(Placed, seen.append)
    receiver.subscribe(Placed, twice)

    handled = [receiver.receive_once() for _ in range(3)]

    assert handled == [[], [], [Placed()]]
    assert (len(seen), twice.calls, held(queue)) == (1, 3, 0)
    assert receiver.health().failed == 2


def test_a_failed_delivery_waits_for_its_delay(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    handler = Failing()
    make_bus(queue).publish(Placed())
    receiver = make_bus(queue, replace(QUICK, retry_delays_seconds=(1, 5), max_receives=10))
    receiver.subscribe(Placed, handler)
    calls = []

    for pause in (0, 0.9, 0.2, 4.9, 0.2, 4.9, 0.2):
        clock.advance(pause)
        receiver.receive_once()
        calls.append(handler.calls)

    assert calls == [1, 1, 2, 2, 3, 3, 4]


def test_a_delivery_that_fails_too_often_is_a_dead_letter_with_its_reason(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    handler = Failing()
    make_bus(queue).publish(Placed())
    receiver = make_bus(queue)
    receiver.subscribe(Placed, handler)
    body = queue.peek()[0].body

    for _ in range(4):
        receiver.receive_once()

    (letter,) = queues.queue("work-dead").peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert (handler.calls, letter.body, receiver.health().dead_lettered) == (3, body, 1)
    assert (marker.source, marker.receives, marker.reason) == ("work", 3, "handler_failed")
    assert marker.type == "tests.bus.vocabulary:Placed"
    assert str(marker.error).startswith("ValueError: attempt 3 [")
    assert str(marker.error).endswith(" [test_receiving.py:__call__]")


def test_an_event_that_is_done_is_acked_when_it_comes_again(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    seen: list[object] = []
    sender, receiver = make_bus(queue), make_bus(queue)
    receiver.subscribe(Identified, seen.append)
    event = Identified()
    sender.publish(event)
    receiver.receive_once()

    sender.publish(event)
    again = receiver.receive_once()
    clock.advance(301)
    sender.publish(event)
    after_the_window = receiver.receive_once()

    assert (again, after_the_window) == ([], [event])
    assert (len(seen), held(queue), receiver.health().duplicates) == (2, 0, 1)


def test_a_copy_of_what_is_done_is_acked_though_nobody_handles_it_any_more(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    sender, receiver = make_bus(queue), make_bus(queue)
    receiver.subscribe(Identified, seen.append)
    event = Identified()
    sender.publish(event)
    receiver.receive_once()
    receiver.unsubscribe(Identified, seen.append)

    sender.publish(event)
    receiver.receive_once()

    assert (held(queue), receiver.health().duplicates, receiver.health().unhandled) == (0, 1, 0)


def test_without_deduplication_every_copy_is_handled(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    sender, receiver = make_bus(queue), make_bus(queue, replace(QUICK, enable_deduplication=False))
    receiver.subscribe(Identified, seen.append)
    event = Identified()

    for _ in range(2):
        sender.publish(event)
        receiver.receive_once()

    assert seen == [event, event]


def test_of_two_copies_at_once_one_runs_and_the_other_comes_again(make_bus: MakeBus, queue: Queue) -> None:
    started, proceed = threading.Event(), threading.Event()
    calls: list[object] = []

    def slow(event: object) -> None:
        calls.append(event)
        started.set()
        proceed.wait(120)
        raise ValueError("the first copy fails")

    sender, receiver = make_bus(queue), make_bus(queue, replace(QUICK, max_receives=100, max_messages_per_poll=1))
    receiver.subscribe(Identified, slow)
    event = Identified()
    sender.publish_many([event, event])
    first = threading.Thread(target=receiver.receive_once)
    first.start()
    started.wait(120)

    receiver.receive_once()
    during = (len(calls), held(queue))
    proceed.set()
    first.join()

    assert during == (1, 2)
    assert held(queue) == 2


def test_the_memory_of_handled_events_is_bounded(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    cache = bus._memory.handled

    for number in range(100_100):
        cache.mark_seen(number)

    assert len(cache) == 100_000


def test_receive_once_raises_what_keeps_it_from_receiving(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    bus = make_bus(queue)
    queues.delete_queue("work")

    with pytest.raises(TransportError):
        bus.receive_once()


def test_an_ack_that_fails_is_covered_by_deduplication(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    seen: list[object] = []
    make_bus(queue).publish(Placed())
    receiver = make_bus(queue)

    def outlives_its_lease(event: object) -> None:
        seen.append(event)
        (other,) = _taken_over(queue, clock)
        queue.release([other])

    receiver.subscribe(Placed, outlives_its_lease)
    receiver.receive_once()
    again = receiver.receive_once()

    assert (len(seen), again, held(queue)) == (1, [], 0)


def _taken_over(queue: Queue, clock: FakeClock) -> list[Any]:
    clock.advance(31)
    return queue.receive()


def test_a_foreign_local_bus_is_used_as_it_is(queue: Queue, make_bus: MakeBus) -> None:
    from postroad.bus import InProcessEventBus

    class Foreign:
        def __init__(self) -> None:
            self.inner = InProcessEventBus()

        def subscribe(self, event_type: type[object], handler: Any) -> None:
            self.inner.subscribe(event_type, handler)

        def unsubscribe(self, event_type: type[object], handler: Any) -> bool:
            return self.inner.unsubscribe(event_type, handler)

        def publish(self, event: object) -> Any:
            return self.inner.publish(event)

    template = make_bus(queue)
    seen: list[object] = []
    bus = RemoteEventBus(outlet=template._outlet, inlet=template._inlet, config=REMOTE, local_bus=Foreign())
    bus.subscribe(Placed, seen.append)
    template.publish(Placed(3))
    template.publish(Shipped(4))

    handled = bus.receive_once()

    assert handled == seen == [Placed(3)]
    assert held(queue) == 1
    bus.close()


def test_a_message_without_attributes_is_read_by_its_body(make_bus: MakeBus, queue: Queue) -> None:
    receiver = make_bus(queue)
    seen: list[object] = []
    receiver.subscribe(Placed, seen.append)
    body = codec.encode(codec.wrap(Placed(5), publisher_id="p"))
    queue.send([OutgoingMessage(body), OutgoingMessage(body, {"EventType": "something:else"})])

    receiver.receive_once()
    receiver.receive_once()

    assert seen == [Placed(5)]


def test_acks_travel_together(make_bus: MakeBus, queue: Queue) -> None:
    acked: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(queue, name)

        def ack(self, deliveries: Any) -> Any:
            acked.append(len(deliveries))
            return queue.ack(deliveries)

    make_bus(queue).publish_many([Placed(number) for number in range(10)])
    receiver = make_bus(Counting())
    receiver.subscribe(Placed, lambda _: None)

    receiver.receive_once()

    assert acked == [10]


def test_an_ack_does_not_wait_for_a_slow_sibling(make_bus: MakeBus, queue: Queue, system_clock: Any) -> None:
    proceed = threading.Event()
    make_bus(queue).publish_many([Placed(1), Placed(2)])
    receiver = make_bus(queue, clock=system_clock)
    receiver.subscribe(Placed, lambda event: event.number == 2 and proceed.wait(120))
    receiver.start_receiver()

    eventually(lambda: held(queue) == 1)

    proceed.set()
    eventually(lambda: held(queue) == 0)


def test_where_attributes_disagree_the_body_decides(make_bus: MakeBus, queue: Queue) -> None:
    receiver = make_bus(queue)
    receiver.subscribe(Placed, lambda _: None)
    body = codec.encode(codec.wrap(Placed(5), publisher_id="p"))
    queue.send([OutgoingMessage(body, {"EventType": "tests.bus.vocabulary:Shipped", "PublisherId": "q"})])

    assert receiver.receive_once() == [Placed(5)]


def test_subscribing_is_enough_to_read_a_type(queue: Queue, clock: FakeClock) -> None:
    @dataclass(frozen=True)
    class Fresh:
        number: int

    def bus() -> RemoteEventBus:
        outlet, inlet = Outlet(name="work", send=queue.send), given_queue(queue)
        return RemoteEventBus(outlet=outlet, inlet=inlet, config=QUICK, registry=EventRegistry(), clock=clock)

    with bus() as sender, bus() as receiver:
        receiver.subscribe(Fresh, lambda _: None)
        sender.publish(Fresh(1))

        assert receiver.receive_once() == [Fresh(1)]


class Unchecked:
    """A local bus that takes whatever it is given."""

    def subscribe(self, event_type: type[object], handler: Any) -> None:
        pass

    def unsubscribe(self, event_type: type[object], handler: Any) -> bool:
        return False

    def publish(self, event: object) -> PublishResult[Any]:
        return PublishResult(event, (), ())


@pytest.mark.parametrize(("event_type", "handler"), [(5, print), (Placed(), print), (Placed, "no function")])
def test_a_remote_bus_checks_its_subscriptions_itself(queue: Queue, event_type: Any, handler: Any) -> None:
    outlet = Outlet(name="work", send=queue.send)
    with RemoteEventBus(outlet=outlet, inlet=None, config=QUICK, local_bus=Unchecked()) as bus:
        with pytest.raises(TypeError):
            bus.subscribe(event_type, handler)
