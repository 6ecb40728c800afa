"""The end of a bus: in time whatever the transport does, with everything given back before the connection goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.proxies import Around, LongPolling
from tests.bus.vocabulary import QUICK, Placed
from tests.waiting import eventually

from postroad import Backend, Queue
from postroad.bus import PublishFailed, RemoteEventBus
from postroad.bus.endpoints import Outlet, given_queue
from postroad.errors import ConfigurationError
from postroad.queues import QueueTraits


class Gone(Around):
    """A queue behind a network that is gone: these calls hang until the test ends."""

    def __init__(self, queue: Queue, *verbs: str) -> None:
        super().__init__(queue)
        self.back = threading.Event()
        for verb in verbs:
            setattr(self, verb, self._hang)

    @property
    def traits(self) -> QueueTraits:
        return replace(self.queue.traits, short_waits=False)

    def _hang(self, *_: Any, **__: Any) -> list[Any]:
        self.back.wait(120)
        return []


class Unreachable(Gone):
    """It cannot even be asked what it is."""

    @property
    def traits(self) -> QueueTraits:
        self.back.wait(120)
        return self.queue.traits


@contextmanager
def seconds() -> Iterator[list[float]]:
    """How long the block took."""
    took: list[float] = []
    started = time.monotonic()
    yield took
    took.append(time.monotonic() - started)


@pytest.mark.parametrize("verb", ["release", "ack"])
def test_a_stop_is_in_time_when_the_network_takes_nothing_back(make_bus: MakeBus, queue: Queue, verb: str) -> None:
    gone, began = Gone(queue, verb), threading.Event()

    def handler(event: Placed) -> None:
        began.set()
        if verb == "release":
            gone.back.wait(120)

    bus = make_bus(gone)
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2)])
    bus.start_receiver()
    began.wait(120)

    with seconds() as took:
        bus.stop_receiver(timeout=0.1)

    gone.back.set()
    assert took[0] < 15, "it waited for the network"


def test_a_stop_is_in_time_when_the_queue_was_never_reached(make_bus: MakeBus, queue: Queue) -> None:
    unreachable = Unreachable(queue)
    bus = make_bus(unreachable)
    bus.start_receiver()

    with seconds() as took:
        bus.stop_receiver(timeout=0.1)

    unreachable.back.set()
    assert took[0] < 15, "it waited for the network"


@contextmanager
def connected(queue: Queue, received: Queue, concurrency: int = 1) -> Iterator[tuple[RemoteEventBus, list[int]]]:
    """A bus, and how many messages were on their way back whenever its connection was closed."""
    at_the_end: list[int] = []
    outlet = Outlet(name="work", send=queue.send, close=lambda: at_the_end.append(queue.stats().in_flight))
    config = replace(QUICK, concurrency=concurrency)
    with RemoteEventBus(outlet=outlet, inlet=given_queue(received), config=config) as bus:
        yield bus, at_the_end


def test_what_a_poll_in_progress_brings_is_given_back_before_the_connection_closes(queue: Queue) -> None:
    polled = LongPolling(queue)
    with connected(queue, polled) as (bus, at_the_end):
        bus.publish(Placed())
        bus.start_receiver()
        polled.polling.wait(120)

        bus.close()
        before = list(at_the_end)
        polled.answer.set()

        eventually(lambda: at_the_end)
    assert (before, at_the_end, queue.stats().visible) == ([], [0], 1)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handler_that_outlives_the_bus_settles_before_the_connection_closes(queue: Queue, concurrency: int) -> None:
    began, proceed = threading.Event(), threading.Event()

    def handler(_: object) -> None:
        began.set()
        proceed.wait(120)

    with connected(queue, queue, concurrency) as (bus, at_the_end):
        bus.publish(Placed())
        bus.subscribe(Placed, handler)
        bus.start_receiver()
        began.wait(120)
        receiver = bus._receiver
        assert receiver is not None
        receiving = receiver._loop
        assert receiving is not None
        bus.stop_receiver(timeout=0)
        if concurrency > 1:
            # Only the worker is left, and the connection must wait for it.
            receiving._thread.join(120)

        bus.close()
        before = list(at_the_end)
        proceed.set()

        eventually(lambda: at_the_end)
    assert (before, at_the_end, queue.stats().visible) == ([], [0], 0)


def test_a_single_reception_ends_before_the_connection_closes(queue: Queue) -> None:
    began, proceed = threading.Event(), threading.Event()

    def handler(_: object) -> None:
        began.set()
        proceed.wait(120)

    with connected(queue, queue) as (bus, at_the_end):
        bus.publish(Placed())
        bus.subscribe(Placed, handler)
        receiving = threading.Thread(target=bus.receive_once)
        receiving.start()
        began.wait(120)

        bus.close()
        before = list(at_the_end)
        proceed.set()
        receiving.join(120)

    assert (before, at_the_end, queue.stats().visible) == ([], [0], 0)


def test_nothing_begins_between_the_stop_and_the_giving_back(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue)
    bus.publish(Placed())
    bus.subscribe(Placed, seen.append)
    assert bus._receiver is not None
    work = bus._receiver._work()

    work.halt()
    work.take(queue, queue.receive())

    assert (seen, queue.stats().visible) == ([], 1)


def test_a_closed_bus_does_not_come_back_to_life(backend: Backend) -> None:
    bus = backend.bus("orders", config=QUICK)
    bus.start_receiver()
    bus.close()

    with pytest.raises(RuntimeError, match="closed"):
        bus.start_receiver()
    with pytest.raises(RuntimeError, match="closed"):
        bus.receive_once()

    assert [name for name in backend.queues() if "--p-" in name] == []


def test_publishing_on_a_closed_bus_is_not_tried_again(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, replace(QUICK, publish_timeout_seconds=600, publish_retry_delay_seconds=100))
    bus.subscribe(Placed, seen.append)
    bus.close()

    result = bus.publish(Placed())

    error = result.errors[0].error
    assert isinstance(error, PublishFailed)
    assert isinstance(error.__cause__, ConfigurationError)
    assert (result.remote, seen) == ("failed", [Placed()])


def test_an_old_receiver_does_not_come_back_to_life_with_a_new_one(make_bus: MakeBus, queue: Queue) -> None:
    polled = LongPolling(queue)
    bus = make_bus(polled)
    bus.start_receiver()
    polled.polling.wait(120)
    receiver = bus._receiver
    assert receiver is not None
    old = receiver._loop
    assert old is not None
    bus.stop_receiver()

    bus.start_receiver()
    polled.answer.set()

    old._thread.join(120)
    assert (old._thread.is_alive(), bus.health().running) == (False, True)
