"""Acks: together, in time, tried again when they fail, and never before a heartbeat in progress has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.proxies import Around
from tests.bus.vocabulary import QUICK, Placed
from tests.waiting import eventually

from postroad import Delivery, Queue
from postroad.errors import Unavailable
from postroad.queues import AckResult
from postroad.testing import FakeClock

BY_WORKERS = replace(QUICK, concurrency=2)


class Acked(Around):
    """Notes how many messages each ack is about; the first of them fail one by one."""

    def __init__(self, queue: Queue, *, failures: int = 0) -> None:
        super().__init__(queue)
        self.batches: list[int] = []
        self._failures = failures

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        self.batches.append(len(deliveries))
        if self._failures:
            self._failures -= 1
            return [AckResult(ok=False, error=Unavailable("busy")) for _ in deliveries]
        return self.queue.ack(deliveries)


def _let_acks_be_tried(acked: Acked, clock: FakeClock, *, times: int) -> None:
    while len(acked.batches) < times:
        clock.advance(0.06)
        time.sleep(0.005)


def test_no_ack_is_about_more_than_ten(make_bus: MakeBus, queue: Queue) -> None:
    acked = Acked(queue)
    bus = make_bus(acked, BY_WORKERS)
    bus.subscribe(Placed, lambda _: None)
    make_bus(queue).publish_many([Placed(number) for number in range(30)])

    bus.start_receiver()

    eventually(lambda: bus.health().handled == 30)
    bus.stop_receiver()
    assert sum(acked.batches) == 30
    assert max(acked.batches) == 10


def test_a_stop_acks_what_is_handled(make_bus: MakeBus, queue: Queue) -> None:
    acked = Acked(queue)
    bus = make_bus(acked, BY_WORKERS)
    bus.subscribe(Placed, lambda _: None)
    make_bus(queue).publish(Placed())
    bus.start_receiver()
    eventually(lambda: bus.health().handled == 1)

    before = list(acked.batches)
    bus.stop_receiver()

    # The clock of the test stands still, so the fifty milliseconds are never over.
    assert (before, acked.batches) == ([], [1])


def test_a_failed_ack_is_tried_again(
    make_bus: MakeBus, queue: Queue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    acked = Acked(queue, failures=2)
    bus = make_bus(acked)
    bus.subscribe(Placed, lambda _: None)
    make_bus(queue).publish(Placed())

    bus.receive_once()
    _let_acks_be_tried(acked, clock, times=3)

    eventually(lambda: queue.stats().in_flight == 0)
    assert "bus_ack_failed" not in caplog.text


def test_an_ack_that_keeps_failing_is_told(
    make_bus: MakeBus, queue: Queue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    acked = Acked(queue, failures=10)
    bus = make_bus(acked)
    bus.subscribe(Placed, lambda _: None)
    make_bus(queue).publish(Placed())

    bus.receive_once()
    _let_acks_be_tried(acked, clock, times=3)

    eventually(lambda: "bus_ack_failed" in caplog.text)
    assert queue.stats().in_flight == 1


def test_an_ack_waits_for_a_heartbeat_in_progress(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    steps: list[str] = []
    extending, go_on = threading.Event(), threading.Event()

    class Watched(Around):
        def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
            extending.set()
            go_on.wait(120)
            steps.append("extended")
            return self.queue.extend(deliveries, seconds=seconds)

        def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
            steps.append("acked")
            return self.queue.ack(deliveries)

    began, proceed, ended = threading.Event(), threading.Event(), threading.Event()

    def handler(_: object) -> None:
        began.set()
        proceed.wait(120)
        ended.set()

    bus = make_bus(Watched(queue))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish(Placed())
    bus.start_receiver()
    began.wait(120)

    clock.advance(16)
    extending.wait(120)
    proceed.set()
    ended.wait(120)
    go_on.set()

    eventually(lambda: len(steps) == 2)
    assert steps == ["extended", "acked"]


def test_a_failed_heartbeat_is_tried_again_while_the_lease_holds(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    extended: list[str] = []

    class Flaky(Around):
        def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
            if not extended:
                extended.append("failed")
                raise Unavailable("no network")
            results = self.queue.extend(deliveries, seconds=seconds)
            # Not before: the test moves the clock past the end of the old lease as soon as it sees this.
            extended.append("done")
            return results

    began, proceed = threading.Event(), threading.Event()

    def handler(_: object) -> None:
        began.set()
        proceed.wait(120)

    bus = make_bus(Flaky(queue))
    bus.subscribe(Placed, handler)
    make_bus(queue).publish(Placed())
    bus.start_receiver()
    began.wait(120)

    clock.advance(16)
    eventually(lambda: len(extended) == 1)
    clock.advance(4)
    eventually(lambda: len(extended) == 2)
    clock.advance(15)
    proceed.set()

    eventually(lambda: queue.stats().in_flight == 0)
    assert (bus.health().handled, queue.stats().visible) == (1, 0)
