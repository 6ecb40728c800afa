"""FIFO: the order of a group holds, when publishing and when handling, whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed, Stepped
from tests.waiting import eventually

from postroad import OutgoingMessage, Queue, SendResult, codec
from postroad.bus import NotSent, OutOfOrder, PublishFailed
from postroad.errors import HeldBack, Unavailable
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing import FakeClock

BY_SESSION = replace(QUICK, message_group_id="${session_id}", local_dispatch=False, max_receives=10)


def steps(*pairs: tuple[str, int]) -> list[Stepped]:
    return [Stepped(session, number) for session, number in pairs]


def test_a_failure_holds_back_the_rest_of_its_group_and_no_other(
    make_bus: MakeBus, fifo_queue: Queue, clock: FakeClock
) -> None:
    seen: list[tuple[str, int]] = []
    failed: list[int] = []

    def handler(event: Stepped) -> None:
        if (event.session_id, event.number) == ("a", 1) and not failed:
            failed.append(1)
            raise ValueError("once")
        seen.append((event.session_id, event.number))

    bus = make_bus(fifo_queue, replace(BY_SESSION, retry_delays_seconds=(5,)))
    bus.subscribe(Stepped, handler)
    bus.publish_many(steps(("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2)))

    bus.receive_once()
    first = list(seen)
    clock.advance(4.9)
    early = bus.receive_once()
    clock.advance(0.2)
    bus.receive_once()

    assert first == [("b", 1), ("b", 2)]
    assert early == []
    assert seen[2:] == [("a", 1), ("a", 2), ("a", 3)]


def test_the_rest_is_released_last_to_first_in_one_call(make_bus: MakeBus, fifo_queue: Queue) -> None:
    released: list[list[int]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(fifo_queue, name)

        def release(self, deliveries: Any, **options: Any) -> Any:
            released.append([codec.decode(each.body).payload["number"] for each in deliveries])
            return fifo_queue.release(deliveries, **options)

    bus = make_bus(Watched(), BY_SESSION)
    bus.subscribe(Stepped, lambda _: 1 / 0)
    bus.publish_many(steps(("a", 1), ("a", 2), ("a", 3)))

    bus.receive_once()

    assert released == [[3, 2, 1]]


def test_waiting_behind_a_failing_one_costs_no_attempt(
    make_bus: MakeBus, fifo_queue: Queue, queues: SQLiteQueues
) -> None:
    calls: list[int] = []

    def handler(event: Stepped) -> None:
        calls.append(event.number)
        if event.number == 1 or calls.count(2) == 1:
            raise ValueError(event.number)

    bus = make_bus(fifo_queue, replace(BY_SESSION, max_receives=3))
    bus.subscribe(Stepped, handler)
    bus.publish_many(steps(("a", 1), ("a", 2)))

    for _ in range(5):
        bus.receive_once()

    dead = [codec.decode(message.body).payload["number"] for message in queues.queue("work-dead.fifo").peek()]
    assert calls == [1, 1, 1, 2, 2]
    assert dead == [1]


def test_poison_does_not_stop_its_group(make_bus: MakeBus, fifo_queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(fifo_queue, BY_SESSION)
    bus.subscribe(Stepped, seen.append)
    fifo_queue.send([OutgoingMessage("[]", group="a", dedup_id="x")])
    bus.publish(Stepped("a", 2))

    bus.receive_once()

    assert seen == [Stepped("a", 2)]


def test_groups_run_at_the_same_time_and_each_in_order(make_bus: MakeBus, fifo_queue: Queue) -> None:
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    together = threading.Barrier(3)

    def handler(event: Stepped) -> None:
        if event.number == 0:
            together.wait(120)
        seen[event.session_id].append(event.number)

    bus = make_bus(fifo_queue, replace(BY_SESSION, concurrency=3))
    bus.subscribe(Stepped, handler)
    bus.publish_many(Stepped(session, number) for number in range(10) for session in "abc")

    bus.start_receiver()

    eventually(lambda: bus.health().handled == 30)
    assert seen == {session: list(range(10)) for session in "abc"}


class Refusing:
    """A transport that refuses some numbers, for good or a few times, and sends all others."""

    def __init__(self, queue: Queue, refused: dict[int, int], *, holds_back: bool) -> None:
        self._queue = queue
        self._left = dict(refused)
        self._holds_back = holds_back
        self.requests: list[list[int]] = []

    def __call__(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        self.requests.append([self._number(message) for message in messages])
        failed: set[str | None] = set()
        return [self._sent(message, failed) for message in messages]

    def _number(self, message: OutgoingMessage) -> int:
        return int(codec.decode(message.body).payload["number"])

    def _sent(self, message: OutgoingMessage, failed: set[str | None]) -> SendResult:
        if message.group in failed and self._holds_back:
            return SendResult(ok=False, error=HeldBack("behind a failed one"))
        number = self._number(message)
        if self._left.get(number, 0) > 0:
            self._left[number] -= 1
            failed.add(message.group)
            return SendResult(ok=False, error=Unavailable(f"not {number}"))
        return self._queue.send([message])[0]


def sent(queue: Queue) -> list[tuple[str | None, int]]:
    return [(message.group, codec.decode(message.body).payload["number"]) for message in queue.peek(limit=100)]


def test_a_failed_event_that_was_overtaken_is_not_sent_again(make_bus: MakeBus, fifo_queue: Queue) -> None:
    transport = Refusing(fifo_queue, {2: 1}, holds_back=False)
    bus = make_bus(fifo_queue, BY_SESSION, send=transport)

    results = bus.publish_many([*steps(*[("a", number) for number in range(1, 13)]), Stepped("b", 20)])

    kinds = [type(result.errors[0].error) if result.errors else None for result in results]
    assert kinds == [None, OutOfOrder, *[None] * 8, NotSent, NotSent, None]
    assert sent(fifo_queue) == [("a", 1), *[("a", number) for number in range(3, 11)], ("b", 20)]
    assert len(transport.requests) == 2


def test_a_passing_failure_is_repeated_with_all_that_waits_behind_it(make_bus: MakeBus, fifo_queue: Queue) -> None:
    transport = Refusing(fifo_queue, {2: 2}, holds_back=True)
    bus = make_bus(fifo_queue, BY_SESSION, send=transport)

    results = bus.publish_many(steps(("a", 1), ("a", 2), ("a", 3), ("b", 4)))

    assert all(result.ok for result in results)
    assert [pair for pair in sent(fifo_queue) if pair[0] == "a"] == [("a", 1), ("a", 2), ("a", 3)]


def test_behind_a_lasting_failure_nothing_of_the_group_is_sent(make_bus: MakeBus, fifo_queue: Queue) -> None:
    transport = Refusing(fifo_queue, {2: 100}, holds_back=True)
    bus = make_bus(fifo_queue, replace(BY_SESSION, publish_retries=1), send=transport)

    results = bus.publish_many([*steps(("a", 1), ("a", 2), ("a", 3)), *[Placed(10) for _ in range(9)], Stepped("a", 4)])

    kinds = [type(result.errors[0].error) if result.errors else None for result in results]
    assert kinds == [None, PublishFailed, NotSent, *[None] * 9, NotSent]
    assert [pair for pair in sent(fifo_queue) if pair[0] == "a"] == [("a", 1)]
