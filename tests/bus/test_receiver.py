"""The receiver's life: started once, stopped in time, and never hiding or losing what it holds."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.proxies import leases_of
from tests.bus.vocabulary import QUICK, Placed
from tests.waiting import eventually

from postroad import Backend, Clock, Queue
from postroad.bus import RemoteEventBus
from postroad.errors import ConfigurationError, Unavailable

LONG = replace(QUICK, wait_time_seconds=20)


class Blocking:
    """A handler that waits until it is told to go on."""

    def __init__(self) -> None:
        self.started, self.proceed = threading.Event(), threading.Event()
        self.seen: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.seen.append(event)
        self.started.set()
        self.proceed.wait(120)


def visible(queue: Queue) -> int:
    return queue.stats().visible


def test_starting_twice_is_refused_and_the_first_goes_on(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue)
    bus.subscribe(Placed, seen.append)
    bus.start_receiver()

    with pytest.raises(RuntimeError, match="already started"):
        bus.start_receiver()

    make_bus(queue).publish(Placed())
    eventually(lambda: seen)
    assert bus.health().running


def test_a_stopped_receiver_starts_again(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue)
    bus.subscribe(Placed, seen.append)
    bus.start_receiver()
    bus.stop_receiver()
    bus.stop_receiver()
    stopped = bus.health().running
    make_bus(queue).publish(Placed())

    bus.start_receiver()

    eventually(lambda: seen == [Placed()])
    assert (stopped, bus.health().running) == (False, True)


def test_a_long_poll_does_not_hold_up_a_stop(backend: Backend) -> None:
    bus = backend.bus("orders", config=LONG)
    bus.start_receiver()
    time.sleep(0.05)

    started = time.monotonic()
    bus.stop_receiver(timeout=60)

    assert time.monotonic() - started < 15, "it waited for its poll"
    backend.bus("orders").publish(Placed())
    eventually(lambda: _own_queue(backend).stats().visible == 1)


def _own_queue(backend: Backend) -> Queue:
    (name,) = [name for name in backend.queues() if "--p-" in name]
    return backend.queue(name)


class LongPolling:
    """A queue whose poll brings its messages only when told, as a poll of SQS in progress may."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.polling, self.answer, self.brought = threading.Event(), threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    @property
    def traits(self) -> Any:
        return replace(self._queue.traits, short_waits=False)

    def receive(self, **options: Any) -> Any:
        self.polling.set()
        self.answer.wait(120)
        found = self._queue.receive(**options)
        if found:
            self.brought.set()
        return found


def test_what_a_poll_in_progress_still_brings_is_given_back(make_bus: MakeBus, queue: Queue) -> None:
    polled = LongPolling(queue)
    seen: list[object] = []
    bus = make_bus(polled, replace(LONG, wait_time_seconds=0))
    bus.subscribe(Placed, seen.append)
    make_bus(queue).publish(Placed())
    bus.start_receiver()
    polled.polling.wait(120)

    started = time.monotonic()
    bus.stop_receiver(timeout=60)
    took = time.monotonic() - started
    polled.answer.set()

    eventually(lambda: polled.brought.is_set() and visible(queue) == 1)
    assert queue.peek()[0].receive_count == 0
    assert took < 30
    assert seen == []


def test_what_no_handler_began_on_is_given_back_at_once(make_bus: MakeBus, queue: Queue) -> None:
    handler = Blocking()
    bus = make_bus(queue)
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2), Placed(3)])
    bus.start_receiver()
    handler.started.wait(120)

    stopping = threading.Thread(target=bus.stop_receiver)
    stopping.start()

    eventually(lambda: visible(queue) == 2)
    handler.proceed.set()
    stopping.join()
    eventually(lambda: queue.stats().in_flight == 0)
    assert handler.seen == [Placed(1)]
    assert visible(queue) == 2


def test_a_stop_returns_in_time_and_the_running_handler_settles_later(make_bus: MakeBus, queue: Queue) -> None:
    handler, second = Blocking(), Blocking()
    second.proceed.set()
    bus = make_bus(queue)
    bus.subscribe(Placed, handler)
    make_bus(queue).publish(Placed())
    bus.start_receiver()
    handler.started.wait(120)

    started = time.monotonic()
    bus.stop_receiver(timeout=0.1)
    took = time.monotonic() - started
    held = queue.stats().in_flight
    handler.proceed.set()

    eventually(lambda: queue.stats().in_flight == 0)
    assert took < 30
    assert (held, visible(queue)) == (1, 0)


def test_no_handler_starts_after_the_stop_has_returned(make_bus: MakeBus, queue: Queue) -> None:
    first, second = Blocking(), Blocking()
    second.proceed.set()
    bus = make_bus(queue)
    bus.subscribe(Placed, first)
    bus.subscribe(Placed, second)
    make_bus(queue).publish(Placed())
    bus.start_receiver()
    first.started.wait(120)

    bus.stop_receiver(timeout=0.05)
    first.proceed.set()

    eventually(lambda: visible(queue) == 1)
    assert second.seen == []
    bus.start_receiver()
    eventually(lambda: second.seen == [Placed()])
    assert first.seen == [Placed()]


def test_a_handler_may_stop_its_own_receiver(make_bus: MakeBus, queue: Queue) -> None:
    took: list[float] = []
    bus = make_bus(queue)

    def stops(_: object) -> None:
        started = time.monotonic()
        bus.stop_receiver()
        took.append(time.monotonic() - started)

    bus.subscribe(Placed, stops)
    make_bus(queue).publish(Placed())
    bus.start_receiver()

    eventually(lambda: took and queue.stats().in_flight == 0)
    assert took[0] < 15
    assert visible(queue) == 0


def test_an_async_handler_may_stop_its_own_receiver(make_bus: MakeBus, queue: Queue) -> None:
    took: list[float] = []
    bus = make_bus(queue)

    async def stops(_: object) -> None:
        started = time.monotonic()
        bus.stop_receiver()
        took.append(time.monotonic() - started)

    bus.subscribe(Placed, stops)
    make_bus(queue).publish(Placed())
    bus.start_receiver()

    eventually(lambda: took)
    assert took[0] < 15


def test_a_stop_costs_no_attempt(make_bus: MakeBus, queue: Queue) -> None:
    handler = Blocking()
    bus = make_bus(queue, replace(QUICK, max_receives=2))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2)])
    bus.start_receiver()
    handler.started.wait(120)
    stopping = threading.Thread(target=bus.stop_receiver)
    stopping.start()
    eventually(lambda: visible(queue) == 1)
    handler.proceed.set()
    stopping.join()
    bus.unsubscribe(Placed, handler)
    bus.subscribe(Placed, lambda _: 1 / 0)

    bus.receive_once()

    assert visible(queue) == 1


def test_sys_exit_in_a_handler_does_not_end_the_receiver(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[int] = []

    def exits(event: Placed) -> None:
        seen.append(event.number)
        if len(seen) == 1:
            raise SystemExit

    bus = make_bus(queue)
    bus.subscribe(Placed, exits)
    make_bus(queue).publish(Placed())
    bus.start_receiver()

    eventually(lambda: len(seen) == 2 and queue.stats().in_flight == 0)


class Flaky:
    """A queue that cannot be reached for a while."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.down = True
        self.polled_at: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def receive(self, **options: Any) -> Any:
        self.polled_at.append(time.monotonic())
        if self.down:
            raise Unavailable("no network")
        return self._queue.receive(**options)


def test_a_receiver_backs_off_and_resumes_by_itself(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    flaky = Flaky(queue)
    bus = make_bus(flaky)
    bus.subscribe(Placed, seen.append)
    make_bus(queue).publish(Placed())
    bus.start_receiver()

    eventually(lambda: bus.health().last_error == "no network")
    flaky.down = False

    eventually(lambda: seen == [Placed()])
    eventually(lambda: bus.health().last_error is None)
    # Half of the first pause may be taken off by chance, no more.
    assert flaky.polled_at[1] - flaky.polled_at[0] >= 0.25
    assert bus.health().running


def test_several_messages_are_handled_at_the_same_time(make_bus: MakeBus, queue: Queue) -> None:
    together = threading.Barrier(3)
    bus = make_bus(queue, replace(QUICK, concurrency=3))
    bus.subscribe(Placed, lambda _: together.wait(120) and None)
    make_bus(queue).publish_many([Placed(number) for number in range(3)])

    bus.start_receiver()

    eventually(lambda: bus.health().handled == 3)
    eventually(lambda: bus.health().in_flight == 0)


def test_a_free_worker_goes_on_while_another_is_busy(make_bus: MakeBus, queue: Queue) -> None:
    handler = Blocking()
    bus = make_bus(queue, replace(QUICK, concurrency=2, max_messages_per_poll=1))
    bus.subscribe(Placed, lambda event: handler(event) if event.number == 0 else None)
    make_bus(queue).publish_many([Placed(number) for number in range(20)])

    bus.start_receiver()

    eventually(lambda: bus.health().handled == 19)
    handler.proceed.set()
    eventually(lambda: bus.health().handled == 20)


def test_a_slow_handler_and_what_waits_behind_it_stay_covered(backend: Backend) -> None:
    # Long enough that a heartbeat comes in time beside a busy machine.
    config = replace(QUICK, visibility_timeout_seconds=4.0, max_receives=1)
    bus = backend.bus("orders", "workers", config=config)
    calls: list[int] = []

    def slow(event: Placed) -> None:
        calls.append(event.number)
        time.sleep(5.0 if event.number == 1 else 0)

    bus.subscribe(Placed, slow)
    bus.publish_many([Placed(1), Placed(2)])

    bus.start_receiver()

    eventually(lambda: bus.health().handled == 2)
    bus.stop_receiver()
    assert calls == [1, 2]
    assert backend.queue("orders--workers--dead").stats().visible == 0
    assert backend.queue("orders--workers").stats().in_flight == 0


def test_a_quick_batch_needs_no_heartbeat(make_bus: MakeBus, queue: Queue, system_clock: Clock) -> None:
    extended: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(queue, name)

        def extend(self, deliveries: Any, *, seconds: float) -> Any:
            extended.append(len(deliveries))
            return queue.extend(deliveries, seconds=seconds)

    bus = make_bus(Watched(), clock=system_clock)
    bus.subscribe(Placed, lambda _: None)
    make_bus(queue).publish_many([Placed(number) for number in range(10)])

    assert len(bus.receive_once()) == 10
    assert extended == []


def test_a_handler_that_runs_for_too_long_is_no_longer_covered(backend: Backend) -> None:
    config = replace(QUICK, visibility_timeout_seconds=0.4, heartbeat_max_seconds=0.3, max_receives=5)
    one, two = (backend.bus("orders", "workers", config=config) for _ in range(2))
    slow, seen = Blocking(), list[object]()
    one.subscribe(Placed, slow)
    two.subscribe(Placed, seen.append)
    one.publish(Placed())
    one.start_receiver()
    slow.started.wait(120)

    two.start_receiver()

    eventually(lambda: seen)
    slow.proceed.set()
    eventually(lambda: one.health().in_flight == 0)


def test_the_result_of_a_lost_lease_is_discarded(backend: Backend) -> None:
    config = replace(QUICK, visibility_timeout_seconds=0.4, max_receives=100)
    bus = backend.bus("orders", "workers", config=config)
    slow = Blocking()
    bus.subscribe(Placed, slow)
    bus.publish(Placed())
    bus.start_receiver()
    slow.started.wait(120)
    queue = backend.queue("orders--workers")

    (held,) = leases_of(bus)
    queue.release([held.delivery])
    (taken,) = queue.receive(visibility=600)
    eventually(lambda: held.lost)
    slow.proceed.set()

    eventually(lambda: bus.health().failed == 1)
    bus.stop_receiver()
    assert queue.ack([taken])[0].ok


def test_a_bus_without_a_queue_publishes_only(queue: Queue, make_bus: MakeBus) -> None:
    template = make_bus(queue)
    bus = RemoteEventBus(outlet=template._outlet, inlet=None, config=QUICK)

    assert bus.publish(Placed()).ok
    with pytest.raises(ConfigurationError, match="queue_url"):
        bus.start_receiver()
    bus.close()
