"""Rows of schedules: what a thousand of them cost a worker that has nothing else to do, and how late their runs are."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import postroad
from benchmarks import ours
from benchmarks.frame import Load, Loads, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.processes import child, hear
from benchmarks.tasks import APP, TENANT, cpu_seconds
from postroad.jobs.dispatcher import worker_roles
from postroad.journal import every_event
from postroad.tasks import TaskRegistry, TaskWorker
from postroad.tasks.threads import RoleThreads

_PATIENCE_SECONDS = 60.0
_NEW_YEAR = {"schedule": "0 0 1 1 *", "tz": "Europe/Athens"}


def nothing(input: Any, ctx: Any) -> None:
    """Do nothing."""


def serve(url: str, pipe: Connection) -> None:
    """Run a worker with all its roles; it is told its schedules and how many they are, and asked for its CPU time."""
    pipe.send("ready")
    registry = TaskRegistry()
    schedule, count = pipe.recv()
    for number in range(count):
        registry.register(nothing, f"task-{number}", **schedule)
    with postroad.connect(url) as backend:
        worker = TaskWorker(backend, registry=registry, tenant_id=TENANT, app=APP, child_reuse=1_000)
        running = threading.Thread(target=worker.run)
        with RoleThreads(worker_roles(backend, tenant_id=TENANT, app=APP, tasks=worker.tasks)):
            running.start()
            while pipe.recv() is not None:
                pipe.send(cpu_seconds())
            worker.stop()
            running.join()


def _every(load: Load) -> int:
    """Seconds between the moments at which all schedules are due; a thousand runs take their time."""
    return 10 if load.crowd >= 1_000 else 3


@contextmanager
def _worker(schedule: dict[str, Any], directory: Path, load: Load) -> Iterator[Any]:
    """A worker that has registered so many of this schedule, and its backend."""
    url = ours.url(directory)
    with postroad.connect(url) as backend, child(serve, url) as pipe:
        pipe.send((schedule, load.crowd))
        _until(lambda: len(backend.items().scan(f"{TENANT}/SCHEDULE#", limit=1_000).items) == load.crowd)
        yield backend, pipe


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise WrongResult("it never happened")
        time.sleep(0.1)


@contextmanager
def _idling(directory: Path, load: Load) -> Iterator[Opened]:
    with _worker(_NEW_YEAR, directory, load) as (_, pipe):

        def used() -> float:
            pipe.send("tell")
            return float(str(hear(pipe)))

        def run() -> float:
            before, started = used(), time.monotonic()
            time.sleep(load.messages)
            return max(1e-6, (used() - before) / (time.monotonic() - started))

        yield Opened(run)


@contextmanager
def _ticking(directory: Path, load: Load) -> Iterator[Opened]:
    # Each tick must have its run, also where the machine is busy when it is due.
    with _worker({"every": _every(load), "catch_up": "all"}, directory, load) as (backend, _):
        yield Opened(lambda: _lateness(backend, load))


def _lateness(backend: postroad.Backend, load: Load) -> float:
    """Seconds between the ticks of a few moments and their runs, 99th percentile; each tick must have one run."""
    every = _every(load)
    first = (int(time.time()) // every + 1) * every
    moments = [first + number * every for number in range(load.messages)]
    wanted = load.crowd * load.messages
    time.sleep(moments[-1] - time.time())
    late: dict[str, float] = {}

    def complete() -> bool:
        pending = every_event(
            backend.journal(), "GSI4", tenant=TENANT, event_type="Task Pending", start=first * 1_000, raw=True
        )
        for event in pending:
            tick = datetime.strptime(event.entity_id[-16:], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
            if tick in moments:
                if event.entity_id in late and late[event.entity_id] != event.timestamp / 1_000 - tick:
                    raise WrongResult(f"{event.entity_id} began twice")
                late[event.entity_id] = event.timestamp / 1_000 - tick
        return len(late) >= wanted

    # So that reading the journal does not slow down what is measured.
    time.sleep(every / 5)
    _until(complete)
    return max(1e-6, sorted(late.values())[math.ceil(0.99 * wanted) - 1])


def _side(opened: Any) -> Side:
    return Side(label="postroad", package="postroad", open=opened)


def _loads(full: int, quick: int) -> Loads:
    return Loads(
        full=Load(messages=full, crowd=1_000),
        quick=Load(messages=quick, crowd=100),
        smallest=Load(messages=1, crowd=20),
    )


ROWS = [
    Row(
        name="schedules-lateness",
        unit="seconds",
        target=1.0,
        loads=_loads(3, 1),
        ours=_side(_ticking),
        what="from the tick to the recorded run of 1,000 schedules due at the same moment, 99th percentile",
        peer=limit("limit of 1 s", 1.0),
    ),
    Row(
        name="schedules-idle-cpu",
        unit="seconds",
        target=1.0,
        loads=_loads(20, 2),
        ours=_side(_idling),
        what="CPU seconds per second of an idle worker with all its roles and 1,000 schedules",
        peer=limit("limit of 2 %", 0.02),
    ),
]
