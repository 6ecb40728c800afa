"""How a receiver asks its queue, and what becomes of what is not its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.proxies import Around
from tests.bus.vocabulary import QUICK, Placed, Shipped
from tests.waiting import eventually

from postroad import Backend, Delivery, OutgoingMessage, Queue, SendResult
from postroad.backoff import Backoff
from postroad.bus import RemoteEventBus, current_context, sender
from postroad.bus.endpoints import Outlet
from postroad.errors import Unavailable
from postroad.queues import QueueTraits
from postroad.queues.markers import read_dead
from postroad.testing import FakeClock


class Asked(Around):
    """Notes what it is asked for."""

    def __init__(self, queue: Queue, *, short_waits: bool = True) -> None:
        super().__init__(queue)
        self.polls: list[dict[str, Any]] = []
        self._short_waits = short_waits

    @property
    def traits(self) -> QueueTraits:
        return replace(self.queue.traits, short_waits=self._short_waits)

    def receive(self, **options: Any) -> list[Delivery]:
        self.polls.append(options)
        return self.queue.receive(**options)


def test_a_poll_asks_for_as_many_as_configured_for_as_long_as_configured(make_bus: MakeBus, queue: Queue) -> None:
    asked = Asked(queue)
    config = replace(QUICK, max_messages_per_poll=3, visibility_timeout_seconds=7)
    bus = make_bus(asked, config)
    bus.subscribe(Placed, lambda _: None)
    make_bus(queue).publish_many([Placed(number) for number in range(5)])

    handled = bus.receive_once()

    assert len(handled) == 3
    assert asked.polls == [{"max_messages": 3, "wait": 0.0, "visibility": 7}]


def test_a_poll_waits_as_long_as_configured_in_one_call_where_calls_cost(make_bus: MakeBus, queue: Queue) -> None:
    asked = Asked(queue, short_waits=False)
    bus = make_bus(asked, replace(QUICK, wait_time_seconds=0.6))

    bus.receive_once()

    assert len(asked.polls) == 1
    assert asked.polls[0]["wait"] == pytest.approx(0.6, abs=0.05)


def test_after_an_empty_poll_the_receiver_waits_its_interval_or_for_the_stop(make_bus: MakeBus, queue: Queue) -> None:
    asked = Asked(queue)
    bus = make_bus(asked, replace(QUICK, poll_interval_seconds=600))
    bus.start_receiver()
    eventually(lambda: asked.polls)
    time.sleep(0.05)

    polls = len(asked.polls)
    bus.stop_receiver(timeout=60)

    assert (polls, len(asked.polls)) == (1, 1)


def test_what_nobody_here_handles_comes_again_after_the_retry_delay(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    bus = make_bus(queue, replace(QUICK, retry_delays_seconds=(5, 30)))
    make_bus(queue).publish(Placed())

    waits = []
    for pause in (4.9, 0.2, 29.0, 1.1):
        bus.receive_once()
        clock.advance(pause)
        waits.append(queue.stats().visible)

    assert waits == [0, 1, 0, 1]


def test_a_broadcast_may_keep_what_nobody_handles_with_the_dead_letters(backend: Backend) -> None:
    with backend.bus("orders", config=replace(QUICK, unhandled="dead_letter")) as bus:
        bus.start_receiver()

        backend.bus("orders", config=QUICK).publish(Shipped())

        eventually(lambda: bus.health().dead_lettered == 1)
    marker = read_dead(backend.queue("orders--dead").peek()[0].attributes)
    assert marker is not None
    assert marker.reason == "unhandled"


def test_a_topic_whose_name_ends_in_fifo_is_fifo(backend: Backend) -> None:
    with backend.bus("orders.fifo", "workers", config=QUICK) as bus:
        results = bus.publish_many([Placed(1), Placed(2)])

    assert all(result.ok for result in results)
    assert sorted(backend.queues()) == ["orders--workers--dead.fifo", "orders--workers.fifo"]


@pytest.mark.parametrize("longest", [None, 1.0])
def test_one_send_is_in_flight_at_a_time(queue: Queue, longest: float | None) -> None:
    sending: list[int] = []
    most: list[int] = []

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        sending.append(1)
        most.append(len(sending))
        time.sleep(0.002)
        sending.pop()
        return queue.send(messages)

    outlet = Outlet(name="work", send=send, longest=longest)
    with RemoteEventBus(outlet=outlet, inlet=None, config=QUICK) as bus:
        threads = [threading.Thread(target=lambda: [bus.publish(Placed()) for _ in range(20)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert max(most) == 1
    assert queue.stats().visible == 160


def test_what_waits_behind_a_long_send_does_not_overtake_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_IDLE_SECONDS", 0.01)
    began, proceed = threading.Event(), threading.Event()
    sent: list[int] = []

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        sent.append(len(messages))
        if not began.is_set():
            began.set()
            proceed.wait(120)
        return queue.send(messages)

    with RemoteEventBus(outlet=Outlet(name="work", send=send, longest=1.0), inlet=None, config=QUICK) as bus:
        first, second = (threading.Thread(target=bus.publish, args=[Placed(number)]) for number in (1, 2))
        first.start()
        began.wait(120)
        second.start()
        time.sleep(0.1)
        meanwhile = list(sent)
        proceed.set()
        first.join(120)
        second.join(120)

    assert (meanwhile, queue.stats().visible) == ([1], 2)


def test_which_handlers_succeeded_is_forgotten_after_the_window(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    calls: list[str] = []

    def fails(_: object) -> None:
        calls.append("fails")
        raise ValueError("always")

    bus = make_bus(queue, replace(QUICK, max_receives=10))
    bus.subscribe(Placed, lambda _: calls.append("succeeds"))
    bus.subscribe(Placed, fails)
    make_bus(queue).publish(Placed())

    bus.receive_once()
    bus.receive_once()
    clock.advance(301)
    bus.receive_once()

    assert calls == ["succeeds", "fails", "fails", "succeeds", "fails"]


def test_a_success_lets_the_back_off_begin_anew(
    make_bus: MakeBus, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    class Quick(Backoff):
        def next(self, chance: float | None = None) -> float:
            super().next(chance)
            pauses.append(self.failures)
            return 0.0

    monkeypatch.setattr("postroad.receiving.workers.Backoff", Quick)
    answers: list[Exception | None] = [Unavailable("no network"), Unavailable("no network"), None, Unavailable("again")]

    class Flaky(Around):
        def receive(self, **options: Any) -> list[Delivery]:
            if answers and (error := answers.pop(0)) is not None:
                raise error
            return self.queue.receive(**options)

    bus = make_bus(Flaky(queue))
    bus.start_receiver()

    eventually(lambda: len(pauses) == 3)
    assert pauses == [1, 2, 1]


def test_a_redelivery_tells_its_count(make_bus: MakeBus, queue: Queue) -> None:
    counts: list[int | None] = []

    def fails_once(_: object) -> None:
        context = current_context()
        counts.append(None if context is None else context.receive_count)
        if len(counts) == 1:
            raise ValueError("once")

    bus = make_bus(queue)
    bus.subscribe(Placed, fails_once)
    make_bus(queue).publish(Placed())

    bus.receive_once()
    bus.receive_once()

    assert counts == [1, 2]
