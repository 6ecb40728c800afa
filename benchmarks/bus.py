"""Rows of the bus inside one process: beside blinker, pyee and a bare loop, and beside itself at two sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from postroad.bus import InProcessEventBus, PublishResult

Handler = Callable[[object], None]
Publish = Callable[[object], object]
Build = Callable[[list[Handler]], Publish]
_LOADS = Loads(full=Load(messages=200_000), quick=Load(messages=50_000), smallest=Load(messages=100))


class Placed:
    """An event; what it holds does not matter here."""


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

    def publish(event: object) -> PublishResult:
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


ROWS = [
    _row("blinker", _blinker, "blinker", 1, 1.0),
    _row("blinker", _blinker, "blinker", 10, 1.0),
    _row("pyee", _pyee, "pyee", 1, 1.0),
    _row("pyee", _pyee, "pyee", 10, 1.0),
    _row("bare", _bare, None, 1, 1 / 4),
    _row("bare", _bare, None, 10, 1 / 2),
    Row(
        name="publish-types", unit="per_second", target=0.9,
        what="publish events of 1,000 types with 10 handlers each against events of one type",
        ours=Side(label="1,000 types", package="postroad", open=_typed(lambda load: load.crowd)),
        peer=Side(label="one type", package="postroad", open=_typed(lambda _: 1)),
        loads=Loads(
            full=Load(messages=100_000, crowd=1_000), quick=Load(messages=20_000, crowd=1_000),
            smallest=Load(messages=40, crowd=20),
        ),
    ),
]  # fmt: skip
