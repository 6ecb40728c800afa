"""The timeout of an async handler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed, dead_letter

from postroad import Backend, Queue
from postroad.errors import ConfigurationError
from postroad.queues.sqlite import SQLiteQueues

REMOTE = replace(QUICK, local_dispatch=False, max_receives=3)


def test_an_async_handler_is_cancelled_at_its_timeout_and_tried_again(make_bus: MakeBus, queue: Queue) -> None:
    calls: list[str] = []
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, timeout=0.05)
    async def slow(event: Placed) -> None:
        calls.append("began")
        try:
            await asyncio.sleep(60 if len(calls) == 1 else 0)
        except asyncio.CancelledError:
            calls.append("cancelled")
            raise
        calls.append("ended")

    bus.publish(Placed())
    first, second = bus.receive_once(), bus.receive_once()

    assert (first, second) == ([], [Placed()])
    assert calls == ["began", "cancelled", "began", "ended"]


def test_a_timeout_is_told_with_its_seconds_and_its_handler(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, timeout=0.05, max_attempts=1)
    async def slow(event: Placed) -> None:
        await asyncio.sleep(60)

    bus.publish(Placed())
    bus.receive_once()

    assert dead_letter(queues) == ("handler_failed", "TimeoutError: the handler took longer than 0.05 s")


def test_a_timeout_holds_for_events_of_this_process_too(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)

    @bus.on(Placed, timeout=0.05)
    async def slow(event: Placed) -> None:
        await asyncio.sleep(60)

    by_publish = bus.publish(Placed())
    by_apublish = asyncio.run(bus.apublish(Placed()))

    for result in (by_publish, by_apublish):
        assert [str(failure.error) for failure in result.errors] == ["the handler took longer than 0.05 s"]
        assert result.handlers_invoked == (slow,)


def test_a_timeout_of_the_handlers_own_stays_what_it_is(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)

    @bus.on(Placed, timeout=60)
    async def own(event: Placed) -> None:
        raise TimeoutError("the bank did not answer")

    assert str(bus.publish(Placed()).errors[0].error) == "the bank did not answer"


def test_a_timeout_is_refused_on_a_plain_function(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)

    with pytest.raises(ConfigurationError, match=r"timeout: .* is not async") as caught:
        bus.on(Placed, timeout=5)(lambda event: None)

    assert caught.value.field == "timeout"
    assert bus.publish(Placed()).handlers_invoked == ()


@pytest.mark.parametrize("wrong", [0, -1, "5", True, float("nan"), 50_000])
def test_a_timeout_out_of_bounds_is_refused(backend: Backend, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout") as caught:
        backend.bus("orders").on(Placed, timeout=wrong)

    assert caught.value.field == "timeout"
