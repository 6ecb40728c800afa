"""Agents: fan-out beside a bare loop that writes the same rows, growth with the number of agents, and waking up."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import agents_aws
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from postroad import OutgoingMessage, QueueSpec
from postroad.agents import AgentEvent, Agents
from postroad.agents.sqlite import store as agent_store
from postroad.agents.sqlite.tables import SCHEMA
from postroad.engine.disk import CHECKPOINT_PAGES
from postroad.engine.file import WRITER_CACHE_KIB, make_file, open_file
from postroad.wiring import Backend, connect

_DATA = {"text": "x" * 200}
_JSON = b'{"text":"' + b"x" * 200 + b'"}'
_ROW = "INSERT INTO agent_row (lane, place, producer) VALUES (?, ?, ?)"
_LARGE = 100_000
_LARGE_LIMIT = 2_000_000.0
_TRANSACTION = 1_000
_THREADS = 3
_numbers = itertools.count()


class Village:
    """Agents in a file of their own: `producers` publish, each is heard by `listeners` of its own."""

    def __init__(self, backend: Backend, *, producers: int, listeners: int, crowd: int = 0) -> None:
        self.backend = backend
        self.agents: Agents = backend.agents()
        for first in range(0, crowd, 10_000):
            self.agents.register_many(min(10_000, crowd - first))
        self.producers = [made.agent_id for made in self.agents.register_many(producers)]
        self.listeners = [made.agent_id for made in self.agents.register_many(producers * listeners)]
        pairs = [
            (listener, producer)
            for number, producer in enumerate(self.producers)
            for listener in self.listeners[number * listeners : (number + 1) * listeners]
        ]
        self.agents.subscribe_many(pairs)
        self.runner = self.agents.runner(worker="bench", batch=1_000)
        self.fan_out = listeners

    def publish(self, data: dict[str, str] = _DATA) -> None:
        results = self.agents.publish([AgentEvent(producer, "measured", data) for producer in self.producers])
        if not all(result.ok for result in results):
            raise WrongResult("an event was not accepted")

    def move(self) -> int:
        written = 0
        while (stats := self.runner.run_once()).read:
            written += stats.written
        return written


@contextmanager
def _village(directory: Path, *, producers: int, listeners: int, crowd: int = 0) -> Iterator[Village]:
    with connect(f"sqlite:///{directory}/agents.db") as backend:
        yield Village(backend, producers=producers, listeners=listeners, crowd=crowd)


def _fanning(*, producers: Callable[[Load], int], listeners: Callable[[Load], int]) -> Open:
    """A side that publishes and moves events until as many deliveries as messages are in the lanes."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _village(directory, producers=producers(load), listeners=listeners(load)) as village:
            yield Opened(lambda: _fan(village, load.messages))

    return opened


def _fan(village: Village, deliveries: int) -> float:
    rounds = max(1, deliveries // (len(village.producers) * village.fan_out))
    started = time.perf_counter()
    written = 0
    for _ in range(rounds):
        village.publish()
        written += village.move()
    seconds = time.perf_counter() - started
    if written != rounds * len(village.producers) * village.fan_out:
        raise WrongResult(f"{written} rows written")
    return written / seconds


def _inserting(*, listeners: Callable[[Load], int]) -> Open:
    """A side that inserts the same rows and indexes in a bare loop, 1,000 a transaction, each synced."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        make_file(directory / "bare.db")
        with closing(open_file(directory / "bare.db", cache_kib=WRITER_CACHE_KIB)) as db:
            db.execute(SCHEMA.steps[0])
            db.wal_autocheckpoint(CHECKPOINT_PAGES)
            db.pragma("synchronous", "full")
            yield Opened(lambda: _insert(db, load.messages, listeners(load)))

    return opened


def _insert(db: object, deliveries: int, listeners: int) -> float:
    execute, executemany = db.execute, db.executemany  # type: ignore[attr-defined]  # a connection of apsw
    started = time.perf_counter()
    for _ in range(0, deliveries, _TRANSACTION):
        execute("BEGIN IMMEDIATE")
        for _ in range(max(1, _TRANSACTION // listeners)):
            place = next(_numbers) + 1
            execute(agent_store._EVENT, (place, 1, str(place), "measured", 0, 0, 0, "1", None, 0, _JSON))
            executemany(_ROW, [(lane, place, 1) for lane in range(min(listeners, _TRANSACTION))])
        execute("COMMIT")
    return deliveries / (time.perf_counter() - started)


def _consuming(*, crowd: Callable[[Load], int], unacked: Callable[[Load], int] | None = None) -> Open:
    """A side that delivers to a hundred agents among a crowd and lets them receive and ack, one at a time."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _village(directory, producers=1, listeners=100, crowd=crowd(load)) as village:
            if unacked is not None:
                _pile_up(village, unacked(load))
            yield Opened(lambda: _consume(village, load.messages))

    return opened


def _pile_up(village: Village, count: int) -> None:
    """Let one lane hold so many messages that nobody acks."""
    producers = [made.agent_id for made in village.agents.register_many(max(1, count // 100))]
    [slow] = village.agents.register_many(1)
    village.agents.subscribe_many([(slow.agent_id, producer) for producer in producers])
    for _ in range(min(100, count)):
        village.agents.publish([AgentEvent(producer, "measured", {}) for producer in producers])
    village.move()
    # What one receive takes locks its producers; the rest waits behind them.
    village.agents.queue(slow.agent_id).receive(max_messages=1_000, visibility=43_200)
    stats = village.agents.stats(slow.agent_id)
    if stats.visible + stats.in_flight != len(producers) * min(100, count):
        raise WrongResult(f"{stats} instead of {count}")


def _consume(village: Village, deliveries: int) -> float:
    rounds = max(1, deliveries // village.fan_out)
    started = time.perf_counter()
    received = 0
    for _ in range(rounds):
        village.publish()
        village.move()
        for listener in village.listeners:
            queue = village.agents.queue(listener)
            taken = queue.receive(max_messages=10)
            received += len(taken)
            queue.ack(taken)
    seconds = time.perf_counter() - started
    if received != rounds * village.fan_out:
        raise WrongResult(f"{received} received")
    return received / seconds


@contextmanager
def _large(directory: Path, load: Load) -> Iterator[Opened]:
    with _village(directory, producers=1, listeners=load.crowd) as village:

        def run() -> float:
            before = _size(directory)
            village.publish({"text": "x" * _LARGE})
            village.move()
            return float(max(1, _size(directory) - before))

        yield Opened(run)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _lane_waking(quantile: float) -> Open:
    """A side that publishes to an agent that waits, while the runner runs; the seconds that so many keep below."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _village(directory, producers=1, listeners=1, crowd=load.crowd) as village:
            stop = threading.Event()
            running = threading.Thread(target=village.agents.runner(worker="bench").run, args=(stop,))
            running.start()
            try:
                queue = village.agents.queue(village.listeners[0])
                yield Opened(
                    lambda: _wake(
                        village.publish, lambda: queue.ack(queue.receive(wait=10)), load.messages, quantile=quantile
                    )
                )
            finally:
                stop.set()
                running.join()

    return opened


@contextmanager
def _queue_waking(directory: Path, load: Load) -> Iterator[Opened]:
    """Send to a queue whose receiver waits; the median seconds."""
    with connect(f"sqlite:///{directory}/queue.db") as backend:
        queue = backend.create_queue(QueueSpec("bare"))
        message = OutgoingMessage("x" * 200)
        yield Opened(
            lambda: _wake(lambda: queue.send([message]), lambda: queue.ack(queue.receive(wait=10)), load.messages)
        )


# The peak that getrusage tells begins with that of the process that started this one.
_PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
"""
_IDLE = (
    _PEAK
    + """
import sys, threading, time
from postroad.wiring import connect
with connect(sys.argv[1]) as backend:
    stop = threading.Event()
    running = threading.Thread(target=backend.agents().runner(worker="bench").run, args=(stop,))
    running.start()
    time.sleep(1)
    before, began = time.process_time(), time.monotonic()
    time.sleep(float(sys.argv[2]))
    used = (time.process_time() - before) / (time.monotonic() - began)
    print(peak(), used, threading.active_count())
    stop.set()
    running.join()
"""
)


def _idling(figure: int) -> Open:
    """A process of its own that runs the runner while nobody says anything; its memory, or its part of a core."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with _village(directory, producers=1, listeners=1, crowd=load.crowd):
            pass
        url = f"sqlite:///{directory}/agents.db"

        def run() -> float:
            told = subprocess.run(
                [sys.executable, "-c", _IDLE, url, str(load.messages)], capture_output=True, text=True, check=True
            ).stdout.split()
            if int(told[2]) > _THREADS:
                raise WrongResult(f"{told[2]} threads")
            return max(1e-6, float(told[figure]))

        yield Opened(run)

    return opened


_GROW = (
    _PEAK
    + """
import sys
from postroad.agents import AgentEvent
from postroad.wiring import connect
with connect(sys.argv[1]) as backend:
    agents = backend.agents()
    runner = agents.runner(worker="bench")
    for producer in sys.argv[2:]:
        before = peak()
        agents.publish([AgentEvent(producer, "measured", {"text": "x" * 200})])
        written = runner.run_once().written
    print(written, peak() - before)
"""
)


@contextmanager
def _growing(directory: Path, load: Load) -> Iterator[Opened]:
    """A process of its own that fans one event out to one subscriber first, and then to the crowd."""
    with _village(directory, producers=1, listeners=1) as village:
        crowded = village.agents.register("crowded").agent_id
        listeners = [made.agent_id for made in village.agents.register_many(load.crowd)]
        for first in range(0, load.crowd, 10_000):
            village.agents.subscribe_many([(each, crowded) for each in listeners[first : first + 10_000]])
        command = [sys.executable, "-c", _GROW, f"sqlite:///{directory}/agents.db", village.producers[0], crowded]

    def run() -> float:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        if int(told[0]) != load.crowd:
            raise WrongResult(f"{told[0]} rows written")
        return max(1.0, float(told[1]))

    yield Opened(run)


def _wake(send: Callable[[], object], receive: Callable[[], object], count: int, *, quantile: float = 0.5) -> float:
    """Seconds from sending to having received, of so many the one at the quantile."""
    took = []
    for _ in range(count):
        ready, done = threading.Event(), [0.0]

        def wait(ready: threading.Event = ready, done: list[float] = done) -> None:
            ready.set()
            receive()
            done[0] = time.perf_counter()

        waiting = threading.Thread(target=wait)
        waiting.start()
        ready.wait()
        time.sleep(0.01)
        started = time.perf_counter()
        send()
        waiting.join()
        took.append(done[0] - started)
    return sorted(took)[int(len(took) * quantile)]


def _loads(messages: int, crowd: int) -> Loads:
    return Loads(
        full=Load(messages=messages, crowd=crowd),
        quick=Load(messages=max(40, messages // 4), crowd=crowd),
        smallest=Load(messages=40, crowd=20),
    )


def _idle_loads() -> Loads:
    """How many seconds to look, and among how many agents."""
    return Loads(
        full=Load(messages=10, crowd=100_000),
        quick=Load(messages=1, crowd=100_000),
        smallest=Load(messages=1, crowd=20),
    )


ROWS = [
    Row(
        name="agents-fan-out-one",
        unit="per_second",
        target=0.5,
        loads=_loads(100_000, 1_000),
        what="1 event to 1,000 subscribers, published and durable in their lanes",
        ours=Side(label="agents", open=_fanning(producers=lambda _: 1, listeners=lambda load: load.crowd)),
        peer=Side(label="bare loop of the same rows", open=_inserting(listeners=lambda load: load.crowd)),
    ),
    Row(
        name="agents-fan-out-many",
        unit="per_second",
        target=0.4,
        loads=_loads(100_000, 1_000),
        what="1,000 producers to 100 subscribers each",
        ours=Side(label="agents", open=_fanning(producers=lambda load: load.crowd, listeners=lambda _: 100)),
        peer=Side(label="bare loop of the same rows", open=_inserting(listeners=lambda _: 100)),
    ),
    Row(
        name="agents-100k",
        unit="per_second",
        target=0.77,
        loads=_loads(4_000, 100_000),
        what="deliver, receive and ack among 100,000 agents against 1,000",
        ours=Side(label="100,000 agents", open=_consuming(crowd=lambda load: load.crowd)),
        peer=Side(label="1,000 agents", open=_consuming(crowd=lambda load: min(1_000, load.crowd))),
    ),
    Row(
        name="agents-unacked",
        unit="per_second",
        target=0.9,
        loads=_loads(4_000, 100_000),
        what="deliver, receive and ack beside one lane with 100,000 unacked messages",
        ours=Side(label="beside it", open=_consuming(crowd=lambda _: 1_000, unacked=lambda load: load.crowd)),
        peer=Side(label="without it", open=_consuming(crowd=lambda _: 1_000)),
    ),
    Row(
        name="agents-large-event",
        unit="bytes",
        target=1.0,
        loads=_loads(40, 1_000),
        what="growth of the file by one event of 100 KB to 1,000 lanes",
        ours=Side(label="agents", open=_large),
        peer=limit("limit of 2 MB", _LARGE_LIMIT),
    ),
    Row(
        name="agents-wake-up",
        unit="seconds",
        target=0.33,
        loads=_loads(200, 1_000),
        what="publish to a waiting agent among 1,000, median",
        ours=Side(label="agents", open=_lane_waking(0.5)),
        peer=Side(label="bare queue", open=_queue_waking),
    ),
    Row(
        name="agents-wake-up-p99",
        unit="seconds",
        target=1.0,
        loads=_loads(200, 1_000),
        what="publish to a waiting agent among 1,000, 99 of 100",
        ours=Side(label="agents", open=_lane_waking(0.99)),
        peer=limit("limit of 100 ms", 0.1),
    ),
    Row(
        name="agents-fan-out-memory",
        unit="bytes",
        target=1.0,
        loads=_loads(40, 100_000),
        what="growth of a process's memory by fanning 1 event out to 100,000 subscribers",
        ours=Side(label="runner", open=_growing),
        peer=limit("limit of 32 MB", 32e6),
    ),
    Row(
        name="agents-idle-memory",
        unit="bytes",
        target=1.0,
        loads=_idle_loads(),
        what="memory of a process that runs the runner for 100,000 idle agents",
        ours=Side(label="runner", open=_idling(0)),
        peer=limit("limit of 150 MB", 150e6),
    ),
    Row(
        name="agents-idle-cpu",
        unit="ratio",
        target=1.0,
        loads=_idle_loads(),
        what="part of a core that the runner takes for 100,000 idle agents",
        ours=Side(label="runner", open=_idling(1)),
        peer=limit("limit of 2 %", 0.02),
    ),
    *agents_aws.ROWS,
]
