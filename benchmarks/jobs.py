"""Rows of jobs: what it costs to bring a large graph forward, task by task, beside a small graph of the same shape."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import postroad
from benchmarks import ours
from benchmarks.emulator import REGION, running, version
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.sqs import CREDENTIALS, counted_requests
from postroad.jobs import JobDispatcher, Jobs
from postroad.jobs.dispatcher import worker_roles
from postroad.queues import MAX_WAIT
from postroad.tasks import EventFactory, TaskId, TaskRecords, TaskWorker, ensure_queues
from postroad.tasks.registry import TaskRegistry
from postroad.tasks.threads import RoleThreads

TENANT, APP = "bench", "bench"
Shape = Callable[[int], list[dict[str, Any]]]
_AT_ONCE = 50


def chain(tasks: int) -> list[dict[str, Any]]:
    """Tasks of which each waits for the one before."""
    return [_task(number, [number - 1] if number else []) for number in range(tasks)]


def fan(tasks: int) -> list[dict[str, Any]]:
    """One task, all others but one behind it, and one behind all of those."""
    between = range(1, tasks - 1)
    return [_task(0, []), *(_task(number, [0]) for number in between), _task(tasks - 1, list(between))]


def layers(tasks: int) -> list[dict[str, Any]]:
    """Layers of fifty, of ten in small graphs; each task waits for two of the layer before."""
    width = 50 if tasks >= 500 else max(2, min(10, tasks // 5))
    found = []
    for number in range(tasks):
        start = (number // width - 1) * width
        found.append(_task(number, [start + (number + step) % width for step in range(2)] if start >= 0 else []))
    return found


def _task(number: int, needs: list[int]) -> dict[str, Any]:
    return {"taskId": f"t{number}", "name": "noop", "dependsOn": [f"t{each}" for each in needs]}


class _Floor:
    """Jobs on a file; tasks end by hand, so that only the work on jobs is measured."""

    def __init__(self, backend: postroad.Backend) -> None:
        self._queue = backend.queue("tasks")
        self._jobs = Jobs(backend, tenant_id=TENANT, app=APP)
        self._dispatcher = JobDispatcher(backend, tenant_id=TENANT, app=APP)
        self._books = TaskRecords(backend)
        self._scribe = EventFactory(app=APP, environment="dev", origin="sqs-worker", clock=backend.clock)
        self._spent = 0.0

    def run(self, tasks: list[dict[str, Any]]) -> float:
        """Seconds that making the job and bringing it forward take; it must end complete."""
        self._spent, job_id = 0.0, f"job-{uuid.uuid4().hex}"
        self._timed(lambda: self._submit(job_id, tasks))
        while started := self._started():
            for task_id, run in started:
                self._end(job_id, task_id, run)
            self._timed(self._wake)
        status = self._jobs.job_status(job_id)
        if status is None or status.status != "completed" or status.total_tasks != len(tasks):
            raise WrongResult(f"the job ended as {status and status.status}")
        return self._spent

    def _timed(self, act: Callable[[], None]) -> None:
        began = time.perf_counter()
        act()
        self._spent += time.perf_counter() - began

    def _submit(self, job_id: str, tasks: list[dict[str, Any]]) -> None:
        self._jobs.submit_job(tasks[:_AT_ONCE], job_id=job_id)
        for start in range(_AT_ONCE, len(tasks), _AT_ONCE):
            self._jobs.add_tasks(job_id, tasks[start : start + _AT_ONCE])

    def _started(self) -> list[tuple[str, int]]:
        found = []
        while deliveries := self._queue.receive(max_messages=10):
            self._queue.ack(deliveries)
            found += [(told["taskId"], told["run"]) for told in (json.loads(each.body) for each in deliveries)]
        return found

    def _end(self, job_id: str, task_id: str, run: int) -> None:
        request_id = f"{job_id}.{task_id}"
        held = self._books.read(TENANT, request_id)
        assert held is not None
        task = TaskId(tenant_id=TENANT, request_id=request_id, run=run, job_id=job_id, task_id=task_id)
        event = self._scribe.event("Task Completed", task, output=None, durationMs=1, exitCode=0)
        if not self._books.write(TENANT, request_id, held.lease.settled(event), [event], expect=held).ok:
            raise WrongResult(f"{request_id} could not be ended")

    def _wake(self) -> None:
        while self._dispatcher.run_once():
            continue


def _whole(shape: Shape, *, small: bool) -> Open:
    """Seconds per task of a graph of `messages` tasks, or of as many small ones of `crowd` tasks as take a while."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        tasks = shape(load.crowd if small else load.messages)
        times = max(1, load.messages // load.crowd // 2) if small else 1
        with postroad.connect(ours.url(directory)) as backend:
            ensure_queues(backend)
            floor = _Floor(backend)

            def run() -> float:
                return sum(floor.run(tasks) for _ in range(times)) / (times * len(tasks))

            yield Opened(run)

    return opened


def _row(name: str, what: str, shape: Shape, loads: Loads) -> Row:
    return Row(
        name=name,
        what=what,
        unit="seconds",
        target=1 / 1.5,
        loads=loads,
        ours=Side(label="postroad, a large graph", package="postroad", open=_whole(shape, small=False)),
        peer=Side(label="postroad, a small graph", package="postroad", open=_whole(shape, small=True)),
    )


_THOUSAND = Loads(
    full=Load(messages=1_000, crowd=50), quick=Load(messages=200, crowd=50), smallest=Load(messages=12, crowd=6)
)
_THOUSANDS = Loads(
    full=Load(messages=5_000, crowd=1_000), quick=Load(messages=1_000, crowd=250), smallest=Load(messages=12, crowd=6)
)


@contextmanager
def _on_aws(directory: Path) -> Iterator[postroad.Backend]:
    """A backend on emulated AWS with a journal and the queues of tasks."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(running(directory))
        stack.enter_context(mock.patch.dict(os.environ, CREDENTIALS))
        backend = stack.enter_context(postroad.connect(f"aws://{REGION}?endpoint_url={endpoint}&stage=bench"))
        backend.journal().init()
        ensure_queues(backend)
        yield backend


@contextmanager
def _looking(directory: Path, load: Load) -> Iterator[Opened]:
    """Requests of a look at a job of which one task is pending and all others wait for it."""
    tasks = [_task(number, [0] if number else []) for number in range(load.crowd)]
    with _on_aws(directory) as backend:
        jobs = Jobs(backend, tenant_id=TENANT, app=APP)
        jobs.submit_job(tasks[:_AT_ONCE], job_id="wide")
        for first in range(_AT_ONCE, load.crowd, _AT_ONCE):
            jobs.add_tasks("wide", tasks[first : first + _AT_ONCE])
        dispatcher = JobDispatcher(backend, tenant_id=TENANT, app=APP)

        def run() -> float:
            with counted_requests() as requests:
                dispatcher.dispatch("wide")
            return float(len(requests))

        yield Opened(run)


@contextmanager
def _idling(directory: Path, load: Load) -> Iterator[Opened]:
    """Requests a minute of a worker with nothing to do, its roles included; one long run counts for every round."""
    with _on_aws(directory) as backend:
        # As `postroad worker` makes it: one of its roles handles the dead letters.
        # A short look has short polls, or it would see none.
        wait = min(MAX_WAIT, load.crowd / 2)
        worker = TaskWorker(backend, tenant_id=TENANT, app=APP, registry=TaskRegistry(), dead_letters=False, wait=wait)
        thread = threading.Thread(target=worker.run)
        with RoleThreads(worker_roles(backend, tenant_id=TENANT, app=APP)):
            thread.start()
            # What opening costs is not what idling costs.
            time.sleep(_SETTLE_SECONDS)
            with counted_requests() as requests:
                time.sleep(load.crowd)
            worker.stop()
            thread.join()
        per_minute = len(requests) * 60 / load.crowd
        yield Opened(lambda: per_minute)


_WAITING = Loads(
    full=Load(messages=1, crowd=100), quick=Load(messages=1, crowd=100), smallest=Load(messages=1, crowd=60)
)
_SECONDS = Loads(full=Load(messages=0, crowd=300), quick=Load(messages=0, crowd=8), smallest=Load(messages=0, crowd=3))
_SETTLE_SECONDS = 2.0

ROWS = [
    Row(
        name="jobs-aws-calls",
        unit="ratio",
        target=1.0,
        loads=_WAITING,
        what="HTTP requests of a look at a job of 100 tasks of which 99 wait (fewer is better)",
        ours=Side(label="postroad", package="postroad", needs=version, open=_looking),
        peer=limit("limit of 5", 5.0),
    ),
    Row(
        name="worker-idle-calls",
        unit="ratio",
        target=1.0,
        loads=_SECONDS,
        what="HTTP requests a minute of an idle worker with all roles on AWS (fewer is better)",
        ours=Side(label="postroad", package="postroad", needs=version, open=_idling),
        peer=limit("limit of 10", 10.0),
        note="one run, whose figure stands for all rounds",
    ),
    _row("jobs-chain", "a chain of 1,000 tasks beside one of 50, per task", chain, _THOUSAND),
    _row("jobs-fan", "1 task, 998 behind it and 1 behind these, beside 1, 48 and 1, per task", fan, _THOUSAND),
    _row("jobs-layers", "1,000 tasks in layers of 50 beside 50 in layers of 10, per task", layers, _THOUSAND),
    _row("jobs-linear", "5,000 tasks in layers of 50 beside 1,000, per task", layers, _THOUSANDS),
]
