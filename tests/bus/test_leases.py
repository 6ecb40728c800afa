"""Leases that are lost, and transports that fail in ways nobody foresaw: order holds and the receiver lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.proxies import Around, Failing, Losing, leases_of
from tests.bus.vocabulary import QUICK, Placed, Stepped
from tests.waiting import eventually

from postroad import Delivery, Queue, codec
from postroad.errors import StaleReceipt, Unavailable
from postroad.queues import AckResult
from postroad.queues.markers import read_dead
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing import FakeClock

LOST = StaleReceipt("another has it")


def number_of(delivery: Delivery) -> int:
    return int(codec.decode(delivery.body).payload["number"])


class Waiting:
    """A handler that waits on the first event until it is told to go on."""

    def __init__(self) -> None:
        self.began, self.proceed = threading.Event(), threading.Event()
        self.seen: list[int] = []

    def __call__(self, event: Any) -> None:
        self.seen.append(event.number)
        self.began.set()
        if event.number == 1:
            self.proceed.wait(120)


def test_nothing_begins_on_a_message_whose_lease_is_lost(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    handler = Waiting()
    bus = make_bus(Losing(queue, lambda delivery: number_of(delivery) == 2, LOST))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2), Placed(3)])
    bus.start_receiver()
    handler.began.wait(120)

    clock.advance(16)
    eventually(lambda: [held.lost for held in leases_of(bus)] == [False, True, False])
    handler.proceed.set()

    eventually(lambda: bus.health().handled == 2)
    assert (handler.seen, bus.health().failed) == ([1, 3], 1)


def test_all_that_is_held_is_extended_in_one_call(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    extended: list[list[int]] = []

    class Watched(Around):
        def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
            extended.append([number_of(delivery) for delivery in deliveries])
            return self.queue.extend(deliveries, seconds=seconds)

    handler = Waiting()
    bus = make_bus(Watched(queue))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2), Placed(3)])
    bus.start_receiver()
    handler.began.wait(120)

    clock.advance(14)
    time.sleep(0.1)
    early = list(extended)
    clock.advance(2)
    eventually(lambda: extended)
    handler.proceed.set()

    eventually(lambda: bus.health().handled == 3)
    assert (early, extended) == ([], [[1, 2, 3]])


@pytest.mark.parametrize("fails", [False, True])
def test_behind_a_lost_lease_the_rest_of_its_group_is_given_back(
    make_bus: MakeBus, fifo_queue: Queue, clock: FakeClock, fails: bool
) -> None:
    began, proceed = threading.Event(), threading.Event()
    seen: list[int] = []

    def handler(event: Stepped) -> None:
        seen.append(event.number)
        began.set()
        proceed.wait(120)
        if fails:
            raise ValueError("and it failed, too")

    config = replace(QUICK, message_group_id="${session_id}")
    bus = make_bus(Losing(fifo_queue, lambda delivery: number_of(delivery) == 1, LOST), config)
    bus.subscribe(Stepped, handler)
    make_bus(fifo_queue, config).publish_many([Stepped("a", 1), Stepped("a", 2)])
    bus.start_receiver()
    began.wait(120)

    clock.advance(16)
    eventually(lambda: any(held.lost for held in leases_of(bus)))
    proceed.set()

    eventually(lambda: bus.health().in_flight == 0)
    bus.stop_receiver()
    assert (seen, bus.health().handled, bus.health().failed) == ([1], 0, 1)


def test_a_heartbeat_that_fails_is_told_and_the_result_still_counts(
    make_bus: MakeBus, queue: Queue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Waiting()
    bus = make_bus(Failing(queue, "extend", Unavailable("no network")))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish(Placed(1))
    bus.start_receiver()
    handler.began.wait(120)

    clock.advance(16)
    eventually(lambda: "bus_heartbeat_failed" in caplog.text)
    handler.proceed.set()

    eventually(lambda: queue.stats().in_flight == 0)
    assert (bus.health().handled, queue.stats().visible) == (1, 0)


def test_a_worker_outlives_a_transport_that_fails_in_a_strange_way(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    seen: set[int] = set()
    bus = make_bus(Failing(queue, "ack", *[ZeroDivisionError("strange")] * 2), replace(QUICK, concurrency=2))
    bus.subscribe(Placed, lambda event: seen.add(event.number))
    make_bus(queue).publish_many([Placed(number) for number in range(60)])

    bus.start_receiver()

    eventually(lambda: seen == set(range(60)))
    eventually(lambda: bus.health().in_flight == 0)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_release_that_fails_in_a_strange_way_leaves_the_message_to_its_visibility(
    make_bus: MakeBus, queue: Queue, clock: FakeClock, concurrency: int
) -> None:
    failed: list[int] = []

    def handler(event: Placed) -> None:
        if not failed:
            failed.append(event.number)
            raise ValueError("once")

    bus = make_bus(Failing(queue, "release", ZeroDivisionError("strange")), replace(QUICK, concurrency=concurrency))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2)])
    bus.start_receiver()
    eventually(lambda: bus.health().handled == 1 and bus.health().in_flight == 0)

    clock.advance(31)

    eventually(lambda: bus.health().handled == 2)


def test_a_handler_that_exits_every_time_ends_in_the_dead_letters(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    def exits(_: object) -> None:
        raise SystemExit(3)

    bus = make_bus(queue)
    bus.subscribe(Placed, exits)
    make_bus(queue).publish(Placed())

    bus.start_receiver()

    eventually(lambda: bus.health().dead_lettered == 1)
    marker = read_dead(queues.queue("work-dead").peek()[0].attributes)
    assert marker is not None
    assert (marker.reason, marker.receives, bus.health().failed) == ("handler_failed", 3, 3)
