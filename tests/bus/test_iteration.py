"""`async for event in bus.events(…)`: an event is acked when the next is asked for, else it is released."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bus.vocabulary import QUICK, Placed, Shipped
from tests.waiting import eventually

import postroad
from postroad import Backend, Bus
from postroad.errors import ConfigurationError
from postroad.inbox import Inbox

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[tuple[Backend, Bus]]:
    async with (
        postroad.connect(url) as backend,
        backend.bus("orders", "billing", config=replace(QUICK, **options)) as bus,
    ):
        yield backend, bus


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_events_come_one_after_another_and_each_is_acked_when_the_next_is_asked_for(url: str) -> None:
    async def main() -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        async with opened(url) as (_, bus):
            await bus.apublish_many([Placed(1), Placed(2), Placed(3)])
            async for event in bus.events(Placed):
                await until(lambda: bus.health().handled == len(seen))
                seen.append((event.number, bus.health().handled))
                if len(seen) == 3:
                    break
        return seen

    assert asyncio.run(main()) == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize("way", ["break", "exception", "aclose"])
def test_an_event_is_released_when_the_loop_is_left(url: str, way: str) -> None:
    async def leave(bus: Bus) -> None:
        if way == "aclose":
            async with aclosing(bus.events(Placed)) as events:
                assert await anext(events) == Placed(1)
            return
        async for event in bus.events(Placed):
            assert event == Placed(1)
            if way == "break":
                break
            raise ValueError("not today")

    async def main() -> tuple[int, int, bool, list[object]]:
        async with opened(url) as (backend, bus):
            await bus.apublish_many([Placed(1), Placed(2)])
            try:
                await leave(bus)
            except ValueError:
                assert way == "exception"
            gc.collect()
            queue = backend.queue("orders--billing")
            await until(lambda: queue.stats().visible == 2)
            await until(lambda: not bus.health().running)
            left = queue.stats().visible, queue.stats().in_flight, bus.health().running
            again: list[object] = []
            async for event in bus.events(Placed):
                again.append(event.number)
                if len(again) == 2:
                    break
            return *left, sorted(again, key=str)

    assert asyncio.run(main()) == (2, 0, False, [1, 2])


def test_an_event_that_is_released_again_and_again_becomes_a_dead_letter(url: str) -> None:
    async def main() -> int:
        async with opened(url) as (backend, bus):
            await bus.apublish(Placed(1))
            letters = backend.queue("orders--billing--dead")
            async with asyncio.timeout(60):
                for _ in range(3):
                    async for _event in bus.events(Placed):
                        break
                    gc.collect()
                    await until(lambda: not bus.health().running)
                bus.on(Placed)(lambda event: None)
                bus.start_receiver()
                await until(lambda: letters.stats().visible == 1)
            return bus.health().handled

    assert asyncio.run(main()) == 0


def test_a_loop_that_is_left_costs_its_event_one_attempt(url: str) -> None:
    async def main() -> int:
        async with opened(url, max_receives=1_000) as (backend, bus):
            await bus.apublish(Placed(1))
            for _ in range(10):
                async for _event in bus.events(Placed):
                    break
                gc.collect()
                await until(lambda: not bus.health().running)
            queue = backend.queue("orders--billing")
            await until(lambda: queue.stats().visible == 1)
            (delivery,) = queue.receive()
            return delivery.receive_count

    assert asyncio.run(main()) == 11


def test_a_backend_that_is_closed_behind_a_loop_has_released_its_event(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bus.db'}"

    async def main() -> None:
        async with opened(url) as (_, bus):
            await bus.apublish(Placed(1))
            async with aclosing(bus.events(Placed)) as events:
                await anext(events)

    asyncio.run(main())

    with postroad.connect(url) as backend:
        assert backend.queue("orders--billing").stats().visible == 1


@pytest.mark.filterwarnings("error")
def test_a_loop_whose_event_loop_ends_leaves_nothing_behind(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with postroad.connect(url) as backend:
        bus = backend.bus("orders", "billing", config=QUICK)

        async def main() -> None:
            await bus.apublish(Placed(1))
            began = asyncio.Event()

            async def follow() -> None:
                async for _event in bus.events(Placed):
                    began.set()
                    await asyncio.sleep(60)

            following = asyncio.create_task(follow())
            await began.wait()
            assert not following.done()

        asyncio.run(main())
        gc.collect()

        eventually(lambda: backend.queue("orders--billing").stats().visible == 1)
    assert caplog.text == ""


def test_a_loop_takes_several_types_and_runs_beside_handlers(url: str) -> None:
    handled: list[object] = []

    async def main() -> list[object]:
        seen: list[object] = []
        async with opened(url) as (_, bus):
            bus.on(Placed)(handled.append)
            bus.start_receiver()
            # It begins when the loop waits for its first event.
            publishing = asyncio.create_task(bus.apublish_many([Placed(1), Shipped(2)]))
            async for event in bus.events(Placed, Shipped):
                seen.append(event)
                if len(seen) == 2:
                    break
            assert bus.health().running
            await publishing
        return seen

    assert asyncio.run(main()) == [Placed(1), Shipped(2)]
    assert handled[0] == Placed(1)


def test_a_loop_that_follows_another_at_once_gets_what_that_one_released(url: str) -> None:
    async def main() -> list[list[int]]:
        rounds: list[list[int]] = []
        async with opened(url, max_receives=20) as (backend, bus):
            await bus.apublish_many([Placed(number) for number in range(5)])
            async with asyncio.timeout(60):
                for _ in range(4):
                    rounds.append([])
                    async for event in bus.events(Placed):
                        rounds[-1].append(event.number)
                        if len(rounds[-1]) == 2:
                            break
                # Each round acked its first event, and released its second one.
                await until(lambda: backend.queue("orders--billing").stats().visible == 1)
        return rounds

    rounds = asyncio.run(main())
    assert [len(each) for each in rounds] == [2, 2, 2, 2]
    assert len({first for first, _ in rounds}) == 4


def test_two_loops_share_one_receiver_which_ends_with_the_last(url: str) -> None:
    async def main() -> tuple[list[object], bool, bool]:
        seen: list[object] = []
        async with opened(url, concurrency=4) as (_, bus):

            async def follow(event_type: type[Any], count: int) -> None:
                found = 0
                async with aclosing(bus.events(event_type)) as events:
                    async for event in events:
                        seen.append(event)
                        found += 1
                        if found == count:
                            return

            one = asyncio.create_task(follow(Placed, 1))
            other = asyncio.create_task(follow(Shipped, 2))
            await until(lambda: bus.health().running)
            await bus.apublish_many([Placed(1), Shipped(1)])
            async with asyncio.timeout(60):
                await one
                running = bus.health().running
                await bus.apublish(Shipped(2))
                await other
            return seen, running, bus.health().running

    seen, running, afterwards = asyncio.run(main())
    assert sorted(map(str, seen)) == sorted(map(str, [Placed(1), Shipped(1), Shipped(2)]))
    assert (running, afterwards) == (True, False)


def test_a_bus_that_is_closed_ends_the_loop(url: str) -> None:
    async def main() -> list[object]:
        seen: list[object] = []
        note = seen.append
        async with opened(url) as (_, bus):

            async def follow() -> None:
                async for event in bus.events(Placed):
                    note(event)

            following = asyncio.create_task(follow())
            await bus.apublish(Placed(1))
            await until(lambda: seen)
            await bus.aclose()
            async with asyncio.timeout(60):
                await following
        return seen

    assert asyncio.run(main()) == [Placed(1)]


def test_events_of_this_process_come_without_making_their_publisher_wait(url: str) -> None:
    async def main() -> list[object]:
        seen: list[object] = []
        async with postroad.connect(url) as backend, backend.bus("orders", config=QUICK) as bus:

            async def follow() -> None:
                async for event in bus.events(Placed):
                    seen.append(event)
                    if len(seen) == 3:
                        return
                    assert (await bus.apublish(Placed(event.number + 1))).ok

            following = asyncio.create_task(follow())
            await until(lambda: bus.health().running)
            assert (await bus.apublish(Placed(1))).ok
            async with asyncio.timeout(60):
                await following
        return seen

    assert asyncio.run(main()) == [Placed(1), Placed(2), Placed(3)]


def test_many_events_at_a_time_wait_for_the_loop_and_are_released_together(url: str) -> None:
    async def main() -> int:
        async with opened(url, concurrency=10) as (backend, bus):
            await bus.apublish_many([Placed(number) for number in range(8)])
            async for _event in bus.events(Placed):
                await until(lambda: bus.health().in_flight == 8)
                break
            gc.collect()
            queue = backend.queue("orders--billing")
            await until(lambda: queue.stats().visible == 8)
            return queue.stats().in_flight

    assert asyncio.run(main()) == 0


def test_a_task_that_is_cancelled_releases_its_event(url: str) -> None:
    async def main() -> int:
        async with opened(url) as (backend, bus):
            began = asyncio.Event()

            async def follow() -> None:
                async for _event in bus.events(Placed):
                    began.set()
                    await asyncio.sleep(60)

            following = asyncio.create_task(follow())
            await bus.apublish(Placed(1))
            await began.wait()
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            gc.collect()
            queue = backend.queue("orders--billing")
            await until(lambda: queue.stats().visible == 1)
            return queue.stats().in_flight

    assert asyncio.run(main()) == 0


@pytest.mark.parametrize("wrong", [(), (int,), ("Placed",)])
def test_types_that_cannot_be_events_are_refused_at_once(backend: Backend, wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match="event_types"):
        backend.bus("orders", "billing").events(*wrong)


def test_a_bus_with_an_inbox_refuses_a_loop(backend: Backend, tmp_path: Path) -> None:
    with Inbox.sqlite(str(tmp_path / "inbox.db")) as inbox, pytest.raises(ConfigurationError, match="inbox") as caught:
        backend.bus("orders", "billing", inbox=inbox).events(Placed)

    assert caught.value.field == "inbox"


CHILD = """
import asyncio
import sys
from dataclasses import replace

from tests.bus.vocabulary import QUICK, Placed

import postroad


async def main() -> None:
    config = replace(QUICK, visibility_timeout_seconds=1)
    async with postroad.connect(sys.argv[1]) as backend, backend.bus("orders", "billing", config=config) as bus:
        async for event in bus.events(Placed):
            print(event.number, flush=True)
            if event.number == 2:
                await asyncio.sleep(600)


asyncio.run(main())
"""


@pytest.mark.slow
def test_the_event_of_a_loop_whose_process_was_killed_comes_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bus.db'}"
    again: list[int] = []
    with postroad.connect(url) as backend:
        bus = backend.bus("orders", "billing", config=QUICK)
        bus.publish_many([Placed(1), Placed(2)])
        child = subprocess.Popen([sys.executable, "-c", CHILD, url], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        told = [child.stdout.readline(), child.stdout.readline()]
        child.kill()
        child.communicate()
        bus.on(Placed)(lambda event: again.append(event.number))
        bus.start_receiver()

        eventually(lambda: 2 in again)

    assert told == ["1\n", "2\n"]
