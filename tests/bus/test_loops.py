"""Which event loop runs an async handler: that of the program, in which the receiver was started, wherever it can."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.vocabulary import QUICK, Placed, Shipped
from tests.waiting import eventually

import postroad
from postroad import Bus, BusConfig

Loop = asyncio.AbstractEventLoop


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def run_with_a_noting_handler(work: Callable[[Any, list[Any]], Any], *, group: str | None = None) -> list[str]:
    """Start a receiver on a loop, let `work` publish, and return where its handler ran each time."""
    loops: list[Loop] = []

    async def main() -> Loop:
        async with postroad.connect("memory://") as backend, backend.bus("orders", group, config=QUICK) as bus:

            @bus.on(Placed)
            async def note(event: Placed) -> None:
                await asyncio.sleep(0)
                loops.append(asyncio.get_running_loop())

            bus.start_receiver()
            await work(bus, loops)
        return asyncio.get_running_loop()

    home = asyncio.run(main())
    return ["home" if each is home else "elsewhere" for each in loops]


def test_an_event_that_was_received_is_handled_on_the_loop_of_the_program() -> None:
    async def work(bus: Any, loops: list[Any]) -> None:
        await bus.apublish(Placed())
        await until(lambda: loops)

    assert run_with_a_noting_handler(work, group="billing") == ["home"]


@pytest.mark.parametrize("many", [False, True])
def test_an_own_event_is_handled_on_the_loop_that_awaits_its_publication(many: bool) -> None:
    async def work(bus: Any, loops: list[Any]) -> None:
        if many:
            await bus.apublish_many([Placed(1), Placed(2)])
        else:
            await bus.apublish(Placed(1))
            await bus.apublish(Placed(2))

    assert run_with_a_noting_handler(work) == ["home", "home"]


def test_many_own_events_are_handled_on_the_callers_loop_without_a_receiver_too() -> None:
    loops: list[Loop] = []

    async def main() -> Loop:
        async with postroad.connect("memory://") as backend, backend.bus("orders", config=QUICK) as bus:

            @bus.on(Placed)
            async def note(event: Placed) -> None:
                loops.append(asyncio.get_running_loop())

            await bus.apublish_many([Placed(1), Placed(2)])
        return asyncio.get_running_loop()

    home = asyncio.run(main())
    assert loops == [home, home]


def test_an_own_event_of_another_thread_is_handled_on_the_loop_of_the_program() -> None:
    async def work(bus: Any, loops: list[Any]) -> None:
        result = await asyncio.to_thread(bus.publish, Placed())
        assert result.ok
        assert len(loops) == 1

    assert run_with_a_noting_handler(work) == ["home"]


def test_an_own_event_of_another_loop_is_handled_on_the_loop_of_the_program() -> None:
    async def work(bus: Any, loops: list[Any]) -> None:
        result = await asyncio.to_thread(lambda: asyncio.run(bus.apublish(Placed())))
        assert result.ok
        assert len(loops) == 1

    assert run_with_a_noting_handler(work) == ["home"]


def test_a_sync_publish_on_the_loops_own_thread_runs_async_handlers_on_a_loop_of_the_bus() -> None:
    async def work(bus: Any, loops: list[Any]) -> None:
        result = bus.publish(Placed())
        assert result.ok
        assert len(loops) == 1

    assert run_with_a_noting_handler(work) == ["elsewhere"]


def test_handlers_that_publish_in_threads_while_the_program_waits_for_them_do_not_stop_each_other() -> None:
    shipped: list[int] = []

    async def main() -> None:
        async with postroad.connect("memory://") as backend, backend.bus("orders", config=QUICK) as bus:

            @bus.on(Placed)
            async def place(event: Placed) -> None:
                await asyncio.to_thread(bus.publish, Shipped(event.number))

            @bus.on(Shipped)
            async def ship(event: Shipped) -> None:
                await asyncio.sleep(0)
                shipped.append(event.number)

            bus.start_receiver()
            # The loop of the program waits for this call, so nothing behind it may wait for that loop.
            bus.publish(Placed(1))
            await bus.apublish(Placed(2))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert shipped == [1, 2]


def test_the_error_of_a_handler_on_the_programs_loop_reaches_the_publisher_in_another_thread() -> None:
    async def main() -> list[str]:
        async with postroad.connect("memory://") as backend, backend.bus("orders", config=QUICK) as bus:

            @bus.on(Placed)
            async def fail(event: Placed) -> None:
                raise TimeoutError("the bank did not answer")

            bus.start_receiver()
            result = await asyncio.to_thread(bus.publish, Placed())
            return [str(failure.error) for failure in result.errors]

    assert asyncio.run(main()) == ["the bank did not answer"]


def test_a_publisher_is_not_held_by_a_loop_that_ended_before_its_handler() -> None:
    results: list[Any] = []
    began = threading.Event()

    async def main(bus: Bus) -> threading.Thread:
        @bus.on(Placed)
        async def slow(event: Placed) -> None:
            began.set()
            await asyncio.sleep(60)

        bus.start_receiver()
        thread = threading.Thread(target=lambda: results.append(bus.publish(Placed())))
        thread.start()
        await until(began.is_set)
        return thread

    with postroad.connect("memory://") as backend:
        thread = asyncio.run(main(backend.bus("orders", config=QUICK)))
        thread.join(120)

    assert [result.ok for result in results] == [False]


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_a_thousand_async_handlers_of_a_tenth_of_a_second_need_few_threads(url: str, tmp_path: Any) -> None:
    address = f"sqlite:///{tmp_path}/bus.db" if url == "sqlite" else url
    threads: list[int] = []

    async def main() -> float:
        config = BusConfig(concurrency=1_000, wait_time_seconds=1)
        async with postroad.connect(address) as backend, backend.bus("orders", "billing", config=config) as bus:
            all_done = asyncio.Event()

            @bus.on(Placed)
            async def slow(event: Placed) -> None:
                await asyncio.sleep(0.1)
                threads.append(threading.active_count())
                if len(threads) == 1_000:
                    all_done.set()

            await bus.apublish_many([Placed(number) for number in range(1_000)])
            before = threading.active_count()
            started = time.perf_counter()
            bus.start_receiver()
            await all_done.wait()
            took = time.perf_counter() - started
            threads.append(max(threads) - before)
        return took

    took = asyncio.run(main())

    # The target is 2 seconds on a machine that has nothing else to do; one after another they take 100.
    assert took < 20
    # Threads of other tests may still be about, so those that came are counted.
    assert threads[-1] < 10


def test_a_sync_close_on_the_loop_hands_back_what_has_not_begun_and_aclose_waits() -> None:
    ended: list[int] = []

    async def main(how: str) -> tuple[float, list[int], int]:
        ended.clear()
        async with postroad.connect("memory://") as backend:
            bus = backend.bus("orders", "billing", config=QUICK)
            began, go_on = asyncio.Event(), asyncio.Event()

            @bus.on(Placed)
            async def slow(event: Placed) -> None:
                began.set()
                await go_on.wait()
                ended.append(event.number)

            bus.start_receiver()
            await bus.apublish_many([Placed(1), Placed(2)])
            await began.wait()
            started = time.perf_counter()
            if how == "close":
                bus.close()
                returned = time.perf_counter() - started
                at_return = list(ended)
                go_on.set()
            else:
                asyncio.get_running_loop().call_later(0.2, go_on.set)
                await bus.aclose()
                returned, at_return = time.perf_counter() - started, list(ended)
            queue = backend.queue("orders--billing")
            await until(lambda: ended and queue.stats().in_flight == 0)
            return returned, at_return, queue.stats().visible

    took, at_return, waiting = asyncio.run(main("close"))
    assert took < 15
    assert (at_return, ended, waiting) == ([], [1], 1)
    _, at_return, waiting = asyncio.run(main("aclose"))
    assert (at_return, waiting) == ([1], 1)


def test_a_close_after_a_sync_close_on_the_loop_waits_for_the_handlers() -> None:
    ended: list[int] = []

    async def main() -> list[int]:
        async with postroad.connect("memory://") as backend:
            bus = backend.bus("orders", "billing", config=QUICK)
            began = asyncio.Event()

            @bus.on(Placed)
            async def slow(event: Placed) -> None:
                began.set()
                await asyncio.sleep(0.2)
                ended.append(event.number)

            bus.start_receiver()
            await bus.apublish(Placed(1))
            await began.wait()
            bus.close()
            await bus.aclose()
            return list(ended)

    assert asyncio.run(main()) == [1]


def test_a_bus_whose_loop_ended_can_be_started_on_another_loop() -> None:
    seen: list[int] = []
    with postroad.connect("memory://") as backend:
        bus = backend.bus("orders", "billing", config=QUICK)

        @bus.on(Placed)
        async def note(event: Placed) -> None:
            seen.append(event.number)

        async def main(number: int) -> None:
            bus.start_receiver()
            await bus.apublish(Placed(number))
            await until(lambda: number in seen)

        asyncio.run(main(1))
        eventually(lambda: not bus.health().running)
        asyncio.run(main(2))

    assert seen == [1, 2]


def test_a_connection_that_the_program_opened_on_its_loop_works_in_handlers() -> None:
    """A lock of asyncio stands for it: one that is waited for on two loops raises."""

    async def main() -> list[bool]:
        lock = asyncio.Lock()
        async with postroad.connect("memory://") as backend, backend.bus("orders", config=QUICK) as bus:
            began: list[int] = []
            ended: list[int] = []

            @bus.on(Placed)
            async def use(event: Placed) -> None:
                began.append(event.number)
                async with lock:
                    ended.append(event.number)

            bus.start_receiver()
            async with lock:
                # Each has to wait for the lock, on the loop to which it is bound by now.
                publishing = [
                    asyncio.create_task(bus.apublish(Placed(1))),
                    asyncio.create_task(asyncio.to_thread(bus.publish, Placed(2))),
                ]
                backend.bus("orders", config=QUICK).publish(Placed(3))
                await until(lambda: len(began) == 3)
            outcomes = await asyncio.gather(*publishing)
            await until(lambda: len(ended) == 3)
            return [outcome.ok for outcome in outcomes]

    assert asyncio.run(main()) == [True, True]


def test_handlers_that_the_end_of_their_loop_cuts_short_lose_no_attempt() -> None:
    config = replace(QUICK, max_receives=2)
    calls: list[str] = []
    with postroad.connect("memory://") as backend:
        bus = backend.bus("orders", "billing", config=config)

        @bus.on(Placed)
        async def charge(event: Placed) -> None:
            calls.append("begun")
            if len(calls) <= 3:
                await asyncio.sleep(60)

        async def leave_early() -> None:
            before = len(calls)
            bus.start_receiver()
            await until(lambda: len(calls) > before)

        bus.publish(Placed())
        for _ in range(3):
            asyncio.run(leave_early())
            eventually(lambda: backend.queue("orders--billing").stats().visible == 1)

        assert bus.receive_once() == [Placed()]
        assert len(calls) == 4
