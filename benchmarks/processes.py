"""Rows of the embedded queue across processes: throughput, wake-up, idle cost, memory."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import postroad
from benchmarks import ours
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.growth import FILL_BATCH
from benchmarks.limits import limit
from benchmarks.workload import PADDING, bodies, check_once, move
from postroad import OutgoingMessage, Queue

_PROCESSES = multiprocessing.get_context("spawn")
_PATIENCE_SECONDS = 180.0


@contextmanager
def child(target: Callable[[str, Connection], None], url: str) -> Iterator[Connection]:
    """A process that works on the file at `url` as told through the pipe; it ends when told None."""
    here, there = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=target, args=(url, there), daemon=True)
    process.start()
    there.close()
    try:
        hear(here)
        yield here
        here.send(None)
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        here.close()


def hear(pipe: Connection) -> object:
    if not pipe.poll(_PATIENCE_SECONDS):
        raise WrongResult("a process did not answer")
    return pipe.recv()


@contextmanager
def _in_child(url: str, pipe: Connection) -> Iterator[Queue]:
    with postroad.connect(url) as backend:
        queue = backend.queue(ours.NAME)
        pipe.send("ready")
        yield queue


def produce(url: str, pipe: Connection) -> None:
    """Send the bodies it is told, in batches of ten; answer with the moment it began."""
    with _in_child(url, pipe) as queue:
        while (told := pipe.recv()) is not None:
            started = time.monotonic()
            for first in range(0, len(told), 10):
                ours.send(queue, [OutgoingMessage(body) for body in told[first : first + 10]])
            pipe.send(started)


def consume(url: str, pipe: Connection) -> None:
    """Receive and ack in batches of ten until told to report; answer with what came and when the last was settled."""
    with _in_child(url, pipe) as queue:
        while (_ := pipe.recv()) is not None:
            received, ended = list[str](), 0.0
            while not pipe.poll():
                if taken := ours.receive(queue, 10, wait=0.05):
                    received += taken
                    ended = time.monotonic()
            pipe.recv()
            pipe.send((received, ended))


def listen(url: str, pipe: Connection) -> None:
    """Wait for one message at a time; answer with the moment it came."""
    with _in_child(url, pipe) as queue:
        while pipe.recv() is not None:
            deliveries = queue.receive(max_messages=1, wait=20)
            pipe.send(time.monotonic())
            queue.ack(deliveries)


def idle(url: str, pipe: Connection) -> None:
    """Wait on the empty queue as long as told; answer with the part of a core it took."""
    with _in_child(url, pipe) as queue:
        while (seconds := pipe.recv()) is not None:
            before, started = _cpu_seconds(), time.monotonic()
            queue.receive(wait=seconds)
            pipe.send((_cpu_seconds() - before) / (time.monotonic() - started))


def weigh(url: str, pipe: Connection) -> None:
    """Send as many messages as told, receive and ack a thousand; answer with the most memory it ever held."""
    with _in_child(url, pipe) as queue:
        while (count := pipe.recv()) is not None:
            for first in range(0, count, FILL_BATCH):
                batch = [OutgoingMessage(f"{n}-{PADDING}") for n in range(first, min(count, first + FILL_BATCH))]
                ours.send(queue, batch)
            received = sum(len(ours.receive(queue, 10)) for _ in range(min(count, FILL_BATCH) // 10))
            pipe.send((received, _most_memory()))


def _most_memory() -> int:
    """The most memory that this process held since its program began.

    `ru_maxrss` begins with what the parent held when it forked, so that a large parent would be measured.
    """
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def _four_processes(directory: Path, load: Load) -> Iterator[Opened]:
    with ours.open_queue(directory) as queue:
        url = ours.url(directory)
        with child(produce, url) as p1, child(produce, url) as p2, child(consume, url) as c1, child(consume, url) as c2:
            yield Opened(
                lambda: _exchange([p1, p2], [c1, c2], queue, load.messages), lambda: ours.durability(queue, directory)
            )


def _exchange(producers: list[Connection], consumers: list[Connection], queue: Queue, messages: int) -> float:
    sent = bodies(messages)
    for pipe in consumers:
        pipe.send("begin")
    for number, pipe in enumerate(producers):
        pipe.send(sent[number::2])
    started = min(float(str(hear(pipe))) for pipe in producers)
    _drained(queue)
    for pipe in consumers:
        pipe.send("report")
    reports = [pipe.recv() for pipe in consumers]
    check_once(sent, itertools.chain.from_iterable(received for received, _ in reports))
    return float(messages / (max(ended for _, ended in reports) - started))


def _drained(queue: Queue) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (stats := queue.stats()).visible + stats.in_flight and time.monotonic() < deadline:
        time.sleep(0.01)


@contextmanager
def _four_threads(directory: Path, load: Load) -> Iterator[Opened]:
    with ours.open_queue(directory) as queue:
        client = ours.QueueClient(queue, 10)

        def run() -> float:
            return move([client] * 2, [client] * 2, messages=load.messages, batch=10)

        yield Opened(run, lambda: ours.durability(queue, directory))


def _waking(percentile: int) -> Open:
    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ours.open_queue(directory) as queue, child(listen, ours.url(directory)) as ear:
            yield Opened(lambda: _wake(queue, ear, load.messages, percentile))

    return opened


def _wake(queue: Queue, ear: Connection, messages: int, percentile: int) -> float:
    """From the call of the send, its sync included, to the return of the receive in the other process."""
    taken = []
    for _ in range(messages):
        ear.send("next")
        time.sleep(random.uniform(0.005, 0.015))
        sent_at = time.monotonic()
        ours.send(queue, [OutgoingMessage("wake")])
        taken.append(float(str(hear(ear))) - sent_at)
    return statistics.quantiles(taken, n=100)[percentile - 1]


@contextmanager
def _idling(directory: Path, load: Load) -> Iterator[Opened]:
    with ours.open_queue(directory), child(idle, ours.url(directory)) as sleeper:

        def run() -> float:
            sleeper.send(load.messages / 10)
            return float(str(hear(sleeper)))

        yield Opened(run)


@contextmanager
def _weighing(directory: Path, load: Load) -> Iterator[Opened]:
    """The process that filled the queue, and each round a new one that works on it: the heavier one counts."""
    with ours.open_queue(directory):
        with child(weigh, ours.url(directory)) as filler:
            filled = _weight(filler, load.crowd)

        def run() -> float:
            with child(weigh, ours.url(directory)) as worker:
                return max(filled, _weight(worker, FILL_BATCH))

        yield Opened(run)


def _weight(pipe: Connection, count: int) -> float:
    pipe.send(count)
    received, held = pipe.recv()
    if received != min(count, FILL_BATCH):
        raise WrongResult(f"{min(count, FILL_BATCH)} wanted, {received} received")
    return float(held)


def _side(label: str, opened: Open) -> Side:
    return Side(label=label, package="postroad", open=opened)


def _loads(full: int, quick: int, smallest: int) -> Loads:
    return Loads(full=Load(messages=full), quick=Load(messages=quick), smallest=Load(messages=smallest))


ROWS = [
    Row(
        name="processes-2x2",
        unit="per_second",
        target=0.75,
        loads=_loads(20_000, 4_000, 80),
        what="2 producer and 2 consumer processes in batches of 10 against as many threads of one process",
        ours=_side("postroad, four processes", _four_processes),
        peer=_side("postroad, one process", _four_threads),
    ),
    Row(
        name="wakeup-p50",
        unit="seconds",
        target=1.0,
        loads=_loads(200, 60, 5),
        ours=_side("postroad", _waking(50)),
        what="a receiver waiting in another process wakes up, median",
        peer=limit("limit of 5 ms", 0.005),
    ),
    Row(
        name="wakeup-p99",
        unit="seconds",
        target=1.0,
        loads=_loads(200, 60, 5),
        ours=_side("postroad", _waking(99)),
        what="a receiver waiting in another process wakes up, 99th percentile",
        peer=limit("limit of 25 ms", 0.025),
    ),
    Row(
        name="idle-cpu",
        unit="seconds",
        target=1.0,
        loads=_loads(50, 20, 5),
        ours=_side("postroad", _idling),
        what="CPU seconds per second of a process that waits on an empty queue",
        peer=limit("limit of 2 %", 0.02),
    ),
    Row(
        name="memory-1m",
        unit="bytes",
        target=1.0,
        ours=_side("postroad", _weighing),
        peer=limit("limit of 100 MB", 100_000_000),
        what="most memory held by a process that fills or works on a queue of 1,000,000 messages",
        loads=Loads(
            full=Load(messages=0, crowd=1_000_000),
            quick=Load(messages=0, crowd=100_000),
            smallest=Load(messages=0, crowd=1_000),
        ),
    ),
]
