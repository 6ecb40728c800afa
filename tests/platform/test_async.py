"""Async handlers run on the loop of the application, without a thread each, and a stop cancels what lasts too long."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading

import pytest
from tests.platform.events import QUICK, OrderPlaced, OrderShipped
from tests.waiting import NEVER_SECONDS, eventually

import postroad
from postroad import Backend, Receiver
from postroad.bus import BusConfig, current_context
from postroad.queues import Delivery, OutgoingMessage, QueueSpec
from postroad.receiving import Ack, Outcome


async def until(condition: object, limit: float = 60.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.01)


def test_handlers_run_on_the_loop_in_which_the_receiver_was_started() -> None:
    loops: list[object] = []

    async def main() -> None:
        async with postroad.connect("memory://") as backend, backend.bus("orders", "billing", config=QUICK) as bus:

            @bus.on(OrderPlaced)
            async def charge(event: OrderPlaced) -> None:
                loops.append(asyncio.get_running_loop())

            bus.start_receiver()
            await bus.apublish(OrderPlaced("A-1"))
            await until(lambda: loops)
            loops.append(asyncio.get_running_loop())

    asyncio.run(main())
    assert loops[0] is loops[1]


def test_many_slow_handlers_need_few_threads() -> None:
    config = BusConfig(wait_time_seconds=0, poll_interval_seconds=0.01, concurrency=200)
    most = running = 0
    threads: set[int] = set()

    async def main(backend: Backend) -> None:
        nonlocal most, running
        bus = backend.bus("orders", "billing", config=config)
        done = 0

        @bus.on(OrderPlaced)
        async def slow(event: OrderPlaced) -> None:
            nonlocal most, running, done
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
            await asyncio.sleep(0.5)
            running -= 1
            done += 1

        await bus.apublish_many([OrderPlaced(f"A-{number}") for number in range(150)])
        bus.start_receiver()
        await until(lambda: done == 150)
        await bus.aclose()

    with postroad.connect("memory://") as backend:
        asyncio.run(main(backend))
    assert most > 20
    assert len(threads) == 1


def test_context_and_sync_handlers_work_beside_async_ones() -> None:
    seen: list[str] = []

    async def main() -> None:
        async with postroad.connect("memory://") as backend, backend.bus("orders", "billing", config=QUICK) as bus:

            @bus.on(OrderPlaced)
            async def one(event: OrderPlaced) -> None:
                context = current_context()
                seen.append(f"async {context is not None and context.envelope.event_type}")

            @bus.on(OrderPlaced)
            def two(event: OrderPlaced) -> None:
                seen.append(f"sync {current_context() is not None}")

            bus.start_receiver()
            await bus.apublish(OrderPlaced("A-1"))
            await until(lambda: len(seen) == 2)

    asyncio.run(main())
    assert seen == ["async shop.placed", "sync True"]


def test_what_runs_too_long_is_cancelled_by_a_stop_and_released() -> None:
    cancelled: list[str] = []

    async def main() -> int:
        async with postroad.connect("memory://") as backend:
            bus = backend.bus("orders", "billing", config=QUICK)
            began = asyncio.Event()

            @bus.on(OrderPlaced)
            async def slow(event: OrderPlaced) -> None:
                began.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(event.order_id)
                    raise

            bus.start_receiver()
            await bus.apublish(OrderPlaced("A-1"))
            await began.wait()
            await asyncio.to_thread(bus.stop_receiver, timeout=0.1)
            return backend.queue("orders--billing").stats().visible

    assert asyncio.run(main()) == 1
    assert cancelled == ["A-1"]


def test_concurrency_limits_async_handlers_too() -> None:
    most = running = 0

    async def decide(delivery: Delivery) -> Outcome:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return Ack()

    with postroad.connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        queue.send([OutgoingMessage(str(number)) for number in range(10)])

        counted = Receiver(queue, decide, concurrency=3).run_once()

    assert (counted["acked"], most) == (10, 3)


def test_context_variables_of_whoever_starts_a_receiver_reach_its_handlers() -> None:
    variable = contextvars.ContextVar("variable", default="")
    seen: list[str] = []

    async def main() -> None:
        async with postroad.connect("memory://") as backend, backend.bus("orders", "billing", config=QUICK) as bus:
            variable.set("theirs")

            @bus.on(OrderPlaced)
            async def one(event: OrderPlaced) -> None:
                seen.append(variable.get())

            @bus.on(OrderPlaced)
            def two(event: OrderPlaced) -> None:
                seen.append(variable.get())

            bus.start_receiver()
            await bus.apublish(OrderPlaced("A-1"))
            await until(lambda: len(seen) == 2)

    asyncio.run(main())
    assert seen == ["theirs", "theirs"]


def test_a_sync_stop_on_the_loop_of_the_handlers_waits_for_none_of_them_and_lets_them_end() -> None:
    ended: list[str] = []

    async def main() -> tuple[float, int]:
        async with postroad.connect("memory://") as backend:
            bus = backend.bus("orders", "billing", config=QUICK)
            began, go_on = asyncio.Event(), asyncio.Event()

            @bus.on(OrderPlaced)
            async def slow(event: OrderPlaced) -> None:
                began.set()
                await go_on.wait()
                ended.append(event.order_id)

            bus.start_receiver()
            await bus.apublish_many([OrderPlaced("A-1"), OrderPlaced("A-2")])
            await began.wait()
            started = asyncio.get_running_loop().time()
            bus.stop_receiver(timeout=60)
            took = asyncio.get_running_loop().time() - started
            go_on.set()
            queue = backend.queue("orders--billing")
            await until(lambda: ended and queue.stats().in_flight == 0)
            return took, queue.stats().visible

    took, visible = asyncio.run(main())
    assert took < 10
    assert (ended, visible) == (["A-1"], 1)


def test_a_loop_that_ends_first_stops_the_receiver_and_loses_nothing() -> None:
    with postroad.connect("memory://") as backend:
        bus = backend.bus("orders", "billing", config=QUICK)
        began = threading.Event()

        @bus.on(OrderPlaced)
        async def slow(event: OrderPlaced) -> None:
            began.set()
            await asyncio.sleep(60)

        async def main() -> None:
            bus.start_receiver()
            await bus.apublish(OrderPlaced("A-1"))
            await until(began.is_set)

        asyncio.run(main())
        backend.bus("orders").publish(OrderPlaced("A-2"))

        eventually(lambda: not bus.health().running)
        eventually(lambda: backend.queue("orders--billing").stats().visible == 2)


def test_a_bus_that_is_run_by_a_task_stops_with_it() -> None:
    seen: list[str] = []

    async def main() -> None:
        async with postroad.connect("memory://") as backend, backend.bus("orders", "billing", config=QUICK) as bus:

            @bus.on(OrderPlaced)
            async def one(event: OrderPlaced) -> None:
                seen.append(event.order_id)

            running = asyncio.create_task(bus.arun())
            results = await bus.apublish_many([OrderPlaced("A-1"), OrderPlaced("A-2")])
            assert all(result.ok for result in results)
            await until(lambda: len(seen) == 2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not bus.health().running

    asyncio.run(main())
    assert seen == ["A-1", "A-2"]


def test_a_bus_that_is_run_by_a_task_ends_with_the_error_that_ended_its_thread() -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("this filter of the program is broken")

    async def main() -> None:
        async with postroad.connect("memory://") as backend, backend.bus("orders", "billing", config=QUICK) as bus:
            bus.on(OrderPlaced)(lambda event: 1 / 0)
            await bus.apublish(OrderPlaced("A-1"))
            async with asyncio.timeout(NEVER_SECONDS):
                await bus.arun()

    logger = logging.getLogger("postroad.bus")
    logger.addFilter(refuse)
    try:
        with pytest.raises(RuntimeError, match="this filter of the program is broken"):
            asyncio.run(main())
    finally:
        logger.removeFilter(refuse)


def test_an_async_decide_of_a_raw_receiver_needs_no_loop_of_the_program() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    with postroad.connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        queue.send([OutgoingMessage("one"), OutgoingMessage("two")])

        async def decide(delivery: Delivery) -> Outcome:
            await asyncio.sleep(0)
            variable.set(variable.get() + 1)
            return Ack()

        counted = Receiver(queue, decide, concurrency=2).run_once()

        assert counted["acked"] == 2


def test_an_async_handler_may_publish_without_awaiting_what_another_async_handler_takes() -> None:
    shipped: list[str] = []

    async def ship(event: OrderShipped) -> None:
        shipped.append(event.order_id)

    with postroad.connect("memory://") as backend:
        bus = backend.bus("orders", config=QUICK)
        bus.subscribe(OrderShipped, ship)

        @bus.on(OrderPlaced)
        async def place(event: OrderPlaced) -> None:
            bus.publish(OrderShipped(event.order_id)).raise_if_errors()

        bus.start_receiver()
        backend.bus("orders", config=QUICK).publish(OrderPlaced("A-1"))
        eventually(lambda: shipped)
        bus.stop_receiver()

    assert shipped == ["A-1"]
