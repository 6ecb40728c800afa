"""Rows of the bus on the embedded engine across processes: latency, broadcast, memory."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import postroad
from benchmarks import ours
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.processes import child, hear
from postroad.bus import BusConfig, TopicEventBus
from postroad.wiring import Backend

TOPIC = "bench"


@postroad.event(name="benchmarks.placed")
class Placed:
    number: int


def answer(url: str, pipe: Connection) -> None:
    """Handle each event as it comes; answer with the moment its handler was called."""
    with postroad.connect(url) as backend, backend.bus(TOPIC) as bus:
        bus.subscribe(Placed, lambda event: pipe.send(time.monotonic()))
        bus.start_receiver()
        pipe.send("ready")
        pipe.recv()


def count(url: str, pipe: Connection) -> None:
    """Handle events; when told how many there were, wait for them and answer how many came."""
    heard = [0]

    def note(event: Placed) -> None:
        heard[0] += 1

    with postroad.connect(url) as backend, backend.bus(TOPIC) as bus:
        bus.subscribe(Placed, note)
        bus.start_receiver()
        pipe.send("ready")
        while (wanted := pipe.recv()) is not None:
            deadline = time.monotonic() + 60
            while heard[0] < wanted and time.monotonic() < deadline:
                time.sleep(0.005)
            pipe.send(heard[0])


def weigh(url: str, pipe: Connection) -> None:
    """Move as many events as told through one bus; answer how its memory compares with that after the first tenth."""
    pipe.send("ready")
    events = pipe.recv()
    with postroad.connect("memory://") as backend:
        bus = backend.bus(TOPIC, "workers", config=BusConfig(wait_time_seconds=0))
        heard = [0]
        bus.subscribe(Placed, lambda event: _note(heard))
        _move(bus, events // 10)
        before = _memory_pages()
        _move(bus, events - events // 10)
        pipe.send((heard[0], _memory_pages() / before))
        bus.close()
    pipe.recv()


def _note(heard: list[int]) -> None:
    heard[0] += 1


def _move(bus: TopicEventBus, events: int) -> None:
    for first in range(0, events, 10):
        bus.publish_many([Placed(number) for number in range(first, min(first + 10, events))])
        bus.receive_once()


def _memory_pages() -> int:
    """What the process holds now; its maximum would be that of the process it was forked from."""
    return int(Path("/proc/self/statm").read_text().split()[1])


def _latency(percentile: int) -> Open:
    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _publisher(directory) as bus, child(answer, ours.url(directory)) as ear:
            yield Opened(lambda: _until_handled(bus, ear, load.messages, percentile))

    return opened


@contextmanager
def _publisher(directory: Path) -> Iterator[TopicEventBus]:
    with postroad.connect(ours.url(directory)) as backend, backend.bus(TOPIC) as bus:
        yield bus


def _until_handled(bus: TopicEventBus, ear: Connection, messages: int, percentile: int) -> float:
    """From the call of publish, its sync included, to the call of the handler in the other process."""
    taken = []
    for number in range(messages):
        time.sleep(random.uniform(0.005, 0.015))
        started = time.monotonic()
        _published(bus, number)
        taken.append(float(str(hear(ear))) - started)
    return statistics.quantiles(taken, n=100)[percentile - 1]


def _broadcast(subscribers: Callable[[Load], int]) -> Open:
    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            backend = stack.enter_context(postroad.connect(ours.url(directory)))
            bus = stack.enter_context(backend.bus(TOPIC))
            ears = [stack.enter_context(child(count, ours.url(directory))) for _ in range(subscribers(load))]
            sent = [0]
            yield Opened(lambda: _until_stored(backend, bus, ears, sent, load.messages))

    return opened


def _until_stored(
    backend: Backend, bus: TopicEventBus, ears: list[Connection], sent: list[int], messages: int
) -> float:
    """The median time of a publish while everybody waits; every subscriber hears each event once before the next."""
    taken = []
    for number in range(messages):
        started = time.perf_counter()
        _published(bus, number)
        taken.append(time.perf_counter() - started)
        sent[0] += 1
        for ear in ears:
            ear.send(sent[0])
        heard: list[Any] = [hear(ear) for ear in ears]
        if set(heard) != {sent[0]}:
            raise WrongResult(f"{sent[0]} published, but the subscribers heard {sorted(set(heard))}")
        _until_acked(backend)
    return statistics.median(taken)


def _until_acked(backend: Backend) -> None:
    while any(backend.queue(name).stats().in_flight for name in backend.queues()):
        time.sleep(0.005)


def _published(bus: TopicEventBus, number: int) -> None:
    if not (result := bus.publish(Placed(number))).ok:
        raise WrongResult(f"not published: {result.errors}")


@contextmanager
def _growing(directory: Path, load: Load) -> Iterator[Opened]:
    """One long run; its figure counts for every round."""
    with child(weigh, ours.url(directory)) as worker:
        worker.send(load.crowd)
        while not worker.poll(600):
            raise WrongResult("the run took too long")
        handled, grown = worker.recv()
        if handled != load.crowd:
            raise WrongResult(f"{load.crowd} published, {handled} handled")
        yield Opened(lambda: grown)


def _side(label: str, opened: Open) -> Side:
    return Side(label=label, package="postroad", open=opened)


_LATENCY = Loads(full=Load(messages=200), quick=Load(messages=60), smallest=Load(messages=5))
_HANDLED = "publish in one process until the handler in another idle one is called"

ROWS = [
    Row(
        name="bus-latency-p50",
        unit="seconds",
        target=1.0,
        loads=_LATENCY,
        ours=_side("postroad", _latency(50)),
        what=f"{_HANDLED}, median",
        peer=limit("limit of 5 ms", 0.005),
    ),
    Row(
        name="bus-latency-p99",
        unit="seconds",
        target=1.0,
        loads=_LATENCY,
        ours=_side("postroad", _latency(99)),
        what=f"{_HANDLED}, 99th percentile",
        peer=limit("limit of 25 ms", 0.025),
    ),
    Row(
        name="bus-broadcast",
        unit="seconds",
        target=0.2,
        what="time of a publish that 50 processes hear against one that a single process hears",
        ours=_side("50 subscribers", _broadcast(lambda load: load.crowd)),
        peer=_side("one subscriber", _broadcast(lambda _: 1)),
        loads=Loads(
            full=Load(messages=50, crowd=50), quick=Load(messages=20, crowd=10), smallest=Load(messages=5, crowd=2)
        ),
    ),
    Row(
        name="bus-memory",
        unit="ratio",
        target=1.0,
        peer=limit("limit of 1.1", 1.1),
        what="memory of a process after 1,000,000 events through one bus against that after the first 100,000",
        ours=_side("postroad", _growing),
        note="one run, whose figure stands for all rounds",
        loads=Loads(
            full=Load(messages=0, crowd=1_000_000),
            quick=Load(messages=0, crowd=100_000),
            smallest=Load(messages=0, crowd=1_000),
        ),
    ),
]
