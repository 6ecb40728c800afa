"""Rows of the bus: in one process beside blinker, pyee and a bare loop; beside itself; many async handlers at once."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import postroad
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from postroad.bus import Bus, BusConfig, InProcessEventBus, PublishResult

Handler = Callable[[object], None]
Publish = Callable[[object], object]
Build = Callable[[list[Handler]], Publish]
_LOADS = Loads(full=Load(messages=200_000), quick=Load(messages=50_000), smallest=Load(messages=100))


_COROUTINES, _THREADS = 100, 32
_HANDLER_SECONDS, _MOST_THREADS = 0.1, 10


class Placed:
    """An event; what it holds does not matter here."""


@postroad.event(name="benchmarks.ordered")
class OrderPlaced:
    """An event that leaves the process."""

    number: int = 1


def _handlers(count: int, heard: list[int]) -> list[Handler]:
    """Functions that differ, as those of a program do, and do next to nothing."""

    def make() -> Handler:
        def handle(event: object) -> None:
            heard[0] += 1

        return handle

    return [make() for _ in range(count)]


def _ours(handlers: list[Handler]) -> Publish:
    bus = InProcessEventBus()
    for handler in handlers:
        bus.subscribe(Placed, handler)
    return bus.publish


def _blinker(handlers: list[Handler]) -> Publish:
    from blinker import Signal

    signal = Signal()
    for handler in handlers:
        signal.connect(handler, weak=False)
    return signal.send


def _pyee(handlers: list[Handler]) -> Publish:
    from pyee.base import EventEmitter

    emitter = EventEmitter()
    for handler in handlers:
        emitter.on("placed", handler)
    return lambda event: emitter.emit("placed", event)


def _bare(handlers: list[Handler]) -> Publish:
    called = tuple(handlers)

    def publish(event: object) -> PublishResult[object]:
        for handler in called:
            handler(event)
        return PublishResult(event, called, ())

    return publish


def _publishing(build: Build, handlers: int) -> Open:
    @contextmanager
    def opened(_: Path, load: Load) -> Iterator[Opened]:
        heard = [0]
        publish = build(_handlers(handlers, heard))
        yield Opened(lambda: _rate(publish, [Placed()], heard, load.messages, handlers))

    return opened


def _rate(publish: Publish, events: list[Any], heard: list[int], count: int, handlers: int) -> float:
    """Events per second, one of the events after the other."""
    heard[0] = 0
    turns, number = range(count // len(events)), len(events)
    started = time.perf_counter()
    for _ in turns:
        for event in events:
            publish(event)
    seconds = time.perf_counter() - started
    if heard[0] != len(turns) * number * handlers:
        raise WrongResult(f"{len(turns) * number * handlers} calls wanted, {heard[0]} made")
    return len(turns) * number / seconds


def _typed(types: Callable[[Load], int]) -> Open:
    """Ten handlers for each of many types, all types in turn."""

    @contextmanager
    def opened(_: Path, load: Load) -> Iterator[Opened]:
        bus, heard = InProcessEventBus(), [0]
        classes = [make_dataclass(f"Event{number}", []) for number in range(types(load))]
        handlers = _handlers(10, heard)
        for cls in classes:
            for handler in handlers:
                bus.subscribe(cls, handler)
        events = [cls() for cls in classes]
        yield Opened(lambda: _rate(bus.publish, events, heard, load.messages, 10))

    return opened


def _row(peer: str, build: Build, package: str | None, handlers: int, target: float) -> Row:
    label = peer if package else "bare loop over a tuple that builds the same result"
    return Row(
        name=f"publish-{handlers}-{peer}",
        what=f"publish inside one process to {handlers} handler{'s' if handlers > 1 else ''}",
        unit="per_second",
        target=target,
        ours=Side(label="postroad", package="postroad", open=_publishing(_ours, handlers)),
        peer=Side(label=label, package=package, open=_publishing(build, handlers)),
        loads=_LOADS,
    )


def _shop(publish: Callable[[Bus, int], None]) -> Open:
    """A bus on a file of its own, to which each round publishes its events one by one."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        url = f"sqlite:///{directory / f'shop-{uuid.uuid4().hex}.db'}"
        with postroad.connect(url) as backend, backend.bus("orders", "billing") as bus:
            queue = backend.queue("orders--billing")

            def round_of_publishes() -> float:
                before = queue.stats().visible
                started = time.perf_counter()
                publish(bus, load.messages)
                seconds = time.perf_counter() - started
                if (sent := queue.stats().visible - before) != load.messages:
                    raise WrongResult(f"{load.messages} events published, {sent} queued")
                return load.messages / seconds

            yield Opened(round_of_publishes)

    return opened


def _by_coroutines(bus: Bus, count: int) -> None:
    async def some(number: int) -> None:
        for _ in range(number):
            (await bus.apublish(OrderPlaced())).raise_if_errors()

    async def all_of_them() -> None:
        await asyncio.gather(*(some(count // _COROUTINES) for _ in range(_COROUTINES)))

    asyncio.run(all_of_them())


def _by_threads(bus: Bus, count: int) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for result in pool.map(lambda _: bus.publish(OrderPlaced()), range(count)):
            result.raise_if_errors()


@contextmanager
def _waiting_handlers(directory: Path, load: Load) -> Iterator[Opened]:
    yield Opened(lambda: asyncio.run(_received(directory, load.messages)))


async def _received(directory: Path, count: int) -> float:
    """Seconds until as many async handlers have ended, all of which may run at the same time, on few threads."""
    url = f"sqlite:///{directory / f'shop-{uuid.uuid4().hex}.db'}"
    threads, done = [0], asyncio.Event()

    async def wait(event: OrderPlaced) -> None:
        await asyncio.sleep(_HANDLER_SECONDS)
        threads.append(threading.active_count())
        if len(threads) > count:
            done.set()

    config = BusConfig(concurrency=count)
    async with postroad.connect(url) as backend, backend.bus("orders", "billing", config=config) as bus:
        bus.on(OrderPlaced)(wait)
        await asyncio.to_thread(bus.publish_many, [OrderPlaced(number) for number in range(count)])
        # The thread of the loop is one of those that handle.
        others, started = threading.active_count() - 1, time.perf_counter()
        bus.start_receiver()
        await done.wait()
        seconds = time.perf_counter() - started
    if (used := max(threads) - others) > _MOST_THREADS:
        raise WrongResult(f"{used} threads, at most {_MOST_THREADS} wanted")
    return seconds


ROWS = [
    Row(
        name="async-handlers",
        unit="seconds",
        target=1.0,
        what="1,000 async handlers of 0.1 s at the same time, on at most 10 threads",
        ours=Side(label="postroad", package="postroad", open=_waiting_handlers),
        peer=limit("limit of 2 s", 2.0),
        loads=Loads(full=Load(messages=1_000), quick=Load(messages=1_000), smallest=Load(messages=20)),
    ),
    Row(
        name="async-publish",
        unit="per_second",
        target=0.7,
        what="publish 1,000 events to a file, from 100 coroutines against 32 threads",
        ours=Side(label="100 coroutines", package="postroad", open=_shop(_by_coroutines)),
        peer=Side(label="32 threads", package="postroad", open=_shop(_by_threads)),
        loads=Loads(full=Load(messages=1_000), quick=Load(messages=1_000), smallest=Load(messages=100)),
    ),
    _row("blinker", _blinker, "blinker", 1, 1.0),
    _row("blinker", _blinker, "blinker", 10, 1.0),
    _row("pyee", _pyee, "pyee", 1, 1.0),
    _row("pyee", _pyee, "pyee", 10, 1.0),
    _row("bare", _bare, None, 1, 1 / 4),
    _row("bare", _bare, None, 10, 1 / 2),
    Row(
        name="publish-types",
        unit="per_second",
        target=0.9,
        what="publish events of 1,000 types with 10 handlers each against events of one type",
        ours=Side(label="1,000 types", package="postroad", open=_typed(lambda load: load.crowd)),
        peer=Side(label="one type", package="postroad", open=_typed(lambda _: 1)),
        loads=Loads(
            full=Load(messages=100_000, crowd=1_000),
            quick=Load(messages=20_000, crowd=1_000),
            smallest=Load(messages=40, crowd=20),
        ),
    ),
]
