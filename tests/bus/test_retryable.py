"""What a handler says about its retries: `NonRetryable` ends them, `Retryable` says when the next one comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed, dead_letter

from postroad import NonRetryable, Queue, Retryable
from postroad.errors import InvalidInput
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing import FakeClock

REMOTE = replace(QUICK, local_dispatch=False, max_receives=3)


def test_what_is_not_retryable_is_a_dead_letter_at_once(make_bus: MakeBus, queue: Queue, queues: SQLiteQueues) -> None:
    calls: list[object] = []
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, max_attempts=5)
    def bill(event: Placed) -> None:
        calls.append(event)
        raise NonRetryable("no such order")

    bus.publish(Placed())
    bus.receive_once()
    bus.receive_once()

    assert calls == [Placed()]
    assert dead_letter(queues) == ("not_retryable", "NonRetryable: no such order")


def test_what_comes_from_something_not_retryable_is_not_retryable_either(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed)
    def bill(event: Placed) -> None:
        try:
            raise NonRetryable("no such order")
        except NonRetryable as error:
            raise RuntimeError("billing failed") from error

    bus.publish(Placed())
    bus.receive_once()

    assert dead_letter(queues) == ("not_retryable", "RuntimeError: billing failed")


def test_what_a_task_group_raises_is_not_retryable_if_a_member_is_not(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed)
    async def bill(event: Placed) -> None:
        async def fail() -> None:
            raise NonRetryable("no such order")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    bus.publish(Placed())
    bus.receive_once()

    letter = dead_letter(queues)
    assert letter is not None
    assert letter[0] == "not_retryable"


def test_others_go_on_after_a_handler_that_is_not_retryable(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    calls: list[str] = []
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, name="bill")
    def bill(event: Placed) -> None:
        calls.append("bill")
        raise NonRetryable("no such order")

    @bus.on(Placed, name="mail")
    def mail(event: Placed) -> None:
        calls.append("mail")
        if calls.count("mail") < 3:
            raise OSError("down")

    bus.publish(Placed())
    for _ in range(4):
        bus.receive_once()

    assert calls == ["bill", "mail", "mail", "mail"]
    assert dead_letter(queues) == ("not_retryable", "NonRetryable: no such order")


def test_without_dead_letters_what_is_not_retryable_comes_again(make_bus: MakeBus, queue: Queue) -> None:
    calls: list[object] = []
    bus = make_bus(queue, REMOTE, dead_letters=False)

    @bus.on(Placed)
    def bill(event: Placed) -> None:
        calls.append(event)
        if len(calls) == 1:
            raise NonRetryable("no such order")

    bus.publish(Placed())
    bus.receive_once()

    assert bus.receive_once() == [Placed()]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_says_when_it_wants_to_be_tried_again(
    make_bus: MakeBus, queue: Queue, clock: FakeClock, kind: str
) -> None:
    bus = make_bus(queue, REMOTE)

    def bill(event: Placed) -> None:
        raise Retryable("the bank is closed", after=60)

    async def abill(event: Placed) -> None:
        bill(event)

    bus.on(Placed, retry_delays=(5,))(bill if kind == "plain" else abill)
    bus.publish(Placed())
    bus.receive_once()

    clock.advance(59)
    early = queue.stats().visible
    clock.advance(2)

    assert (early, queue.stats().visible) == (0, 1)


def test_asking_for_another_attempt_adds_none(make_bus: MakeBus, queue: Queue, queues: SQLiteQueues) -> None:
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, max_attempts=2)
    def bill(event: Placed) -> None:
        raise Retryable("the bank is closed", after=0)

    bus.publish(Placed())
    for _ in range(3):
        bus.receive_once()

    assert dead_letter(queues) == ("handler_failed", "Retryable: the bank is closed")


@pytest.mark.parametrize("wrong", [-1, 43_201, float("nan"), "60", True])
def test_a_pause_out_of_bounds_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="after") as caught:
        Retryable("later", after=wrong)

    assert caught.value.field == "after"
