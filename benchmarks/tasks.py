"""Rows of tasks: no-op tasks a second, what a task costs, memory over many, an idle worker."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import postroad
from benchmarks import ours, task_peers
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.processes import child, hear
from postroad.items import ANY
from postroad.tasks import TaskProducer, TaskWorker
from postroad.tasks.processes import resident_bytes

TENANT, APP, TASK = "bench", "bench", "noop"
_PATIENCE_SECONDS = 180.0
_BASE_TASKS = 1_000
_AT_ONCE = 100


def _worker(backend: postroad.Backend, child_reuse: int) -> TaskWorker:
    return TaskWorker(
        backend,
        imports=["benchmarks.noop_tasks"],
        tenant_id=TENANT,
        app=APP,
        child_reuse=child_reuse,
        concurrency=task_peers.CONCURRENCY,
    )


def _serve(url: str, pipe: Connection, child_reuse: int) -> None:
    """Work until told None; answer anything else with the memory held and the CPU time used, children's too."""
    with postroad.connect(url) as backend:
        worker = _worker(backend, child_reuse)
        running = threading.Thread(target=worker.run)
        running.start()
        pipe.send("ready")
        while pipe.recv() is not None:
            pipe.send((resident_bytes(os.getpid()), cpu_seconds()))
        worker.stop()
        running.join()


def serve_one_each(url: str, pipe: Connection) -> None:
    """A worker with one process per task."""
    _serve(url, pipe, 1)


def serve_reusing(url: str, pipe: Connection) -> None:
    """A worker whose children last for a thousand tasks."""
    _serve(url, pipe, 1_000)


def cpu_seconds() -> float:
    """What this process and all that stem from it have used so far."""
    from postroad.tasks.processes import descendants

    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _running(*, reusing: bool) -> Open:
    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        url = ours.url(directory)
        with postroad.connect(url) as backend, child(serve_reusing if reusing else serve_one_each, url):
            producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
            _round(backend, producer, 10)
            yield Opened(lambda: load.messages / _round(backend, producer, load.messages))

    return opened


def _round(backend: postroad.Backend, producer: TaskProducer, tasks: int) -> float:
    """Seconds from the first submit to the last recorded end; each task must have ended once, and well."""
    started = time.perf_counter()
    ids = [producer.submit(TASK, {"n": number}).request_id for number in range(tasks)]
    _drained(backend)
    taken = time.perf_counter() - started
    for request_id in ids[:: max(1, tasks // 50)]:
        state = producer.status(request_id)
        if state is None or state.state != "completed" or state.attempt != 1:
            raise WrongResult(f"a task ended as {state}")
    return taken


def _drained(backend: postroad.Backend) -> None:
    queue, deadline = backend.queue("tasks"), time.monotonic() + _PATIENCE_SECONDS
    while (stats := queue.stats()).visible + stats.in_flight + stats.delayed:
        if time.monotonic() > deadline:
            raise WrongResult("tasks are left in the queue")
        time.sleep(0.002)


@contextmanager
def _costing(directory: Path, load: Load) -> Iterator[Opened]:
    """From the submit of one task to its recorded end, median."""
    url = ours.url(directory)
    with postroad.connect(url) as backend, child(serve_one_each, url):
        producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
        _round(backend, producer, 10)

        def run() -> float:
            return statistics.median(_round(backend, producer, 1) for _ in range(load.messages))

        yield Opened(run)


@contextmanager
def _bare(directory: Path, load: Load) -> Iterator[Opened]:
    """A fork, a pipe and a wait in a process that holds what a zygote holds, and four commits one after the other."""
    url = ours.url(directory)
    with postroad.connect(url) as backend, child(fork_barely, url) as zygote:
        items = backend.items()

        def once() -> float:
            zygote.send("fork")
            forked = float(str(hear(zygote)))
            started = time.perf_counter()
            for number in range(4):
                items.put(f"bench/{number}", b"x", expect=ANY)
            return forked + time.perf_counter() - started

        yield Opened(lambda: statistics.median(once() for _ in range(load.messages)))


def fork_barely(url: str, pipe: Connection) -> None:
    """Fork, hear the child through a pipe and wait for it; answer with the seconds it took."""
    import benchmarks.noop_tasks  # noqa: F401  # what a zygote holds in memory

    pipe.send("ready")
    while pipe.recv() is not None:
        started = time.perf_counter()
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(writer, b"x")
            os._exit(0)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        os.waitpid(pid, 0)
        pipe.send(time.perf_counter() - started)


@contextmanager
def _growing(directory: Path, load: Load) -> Iterator[Opened]:
    """How much more memory the worker holds after many tasks than after the first thousand."""
    url = ours.url(directory)
    with postroad.connect(url) as backend, child(serve_reusing, url) as pipe:
        producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
        _round(backend, producer, min(_BASE_TASKS, load.messages))
        before = _asked(pipe)[0]

        def run() -> float:
            _round(backend, producer, load.messages)
            return max(1.0, _asked(pipe)[0] - before)

        yield Opened(run)


@contextmanager
def _idling(directory: Path, load: Load) -> Iterator[Opened]:
    url = ours.url(directory)
    with postroad.connect(url) as backend, child(serve_one_each, url) as pipe:
        _round(backend, TaskProducer(backend, tenant_id=TENANT, app=APP), 3)

        def run() -> float:
            before, started = _asked(pipe)[1], time.monotonic()
            time.sleep(load.messages / 10)
            return max(1e-6, (_asked(pipe)[1] - before) / (time.monotonic() - started))

        yield Opened(run)


def _asked(pipe: Connection) -> tuple[float, float]:
    pipe.send("tell")
    told = hear(pipe)
    assert isinstance(told, tuple)
    return float(told[0]), float(told[1])


@contextmanager
def _waiting(directory: Path, load: Load) -> Iterator[Opened]:
    """From the submit of a task to the return of its handle's `wait`, median."""
    with _one_by_one(directory) as run:
        yield Opened(lambda: statistics.median(run()[0] for _ in range(load.messages)))


@contextmanager
def _ending(directory: Path, load: Load) -> Iterator[Opened]:
    """From the submit of a task to its `Task Completed`, median."""
    with _one_by_one(directory) as run:
        yield Opened(lambda: statistics.median(run()[1] for _ in range(load.messages)))


@contextmanager
def _one_by_one(directory: Path) -> Iterator[Callable[[], tuple[float, float]]]:
    """Yield a function that runs one task: the seconds until `wait` returned, and until the event."""
    url = ours.url(directory)
    with postroad.connect(url) as backend, child(serve_one_each, url):
        producer = TaskProducer(backend, tenant_id=TENANT, app=APP)

        def run() -> tuple[float, float]:
            started, at = time.perf_counter(), time.time()
            handle = producer.submit(TASK, {"n": 1})
            if not isinstance(handle.wait(_PATIENCE_SECONDS), int):
                raise WrongResult("a task returned something else")
            waited = time.perf_counter() - started
            # The event has the millisecond in which it was made, without its fraction.
            ended = producer.history(handle.request_id)[-1].timestamp / 1_000 + 0.000_5 - at
            return waited, ended

        run()
        yield run


def _submitting(*, many: bool) -> Open:
    """Tasks a second, 100 in a call or each in its own."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with postroad.connect(ours.url(directory)) as backend:
            producer = TaskProducer(backend, tenant_id=TENANT, app=APP)

            def run() -> float:
                calls = [(TASK, {"n": number}) for number in range(load.messages)]
                started = time.perf_counter()
                if many:
                    handles = [
                        handle
                        for start in range(0, len(calls), _AT_ONCE)
                        for handle in producer.submit_many(calls[start : start + _AT_ONCE])
                    ]
                else:
                    handles = [producer.submit(name, input) for name, input in calls]
                taken = time.perf_counter() - started
                if len({handle.request_id for handle in handles if handle.created}) != load.messages:
                    raise WrongResult("tasks were lost or doubled")
                return load.messages / taken

            yield Opened(run)

    return opened


def _side(label: str, opened: Open) -> Side:
    return Side(label=label, package="postroad", open=opened)


def _loads(full: int, quick: int, smallest: int) -> Loads:
    return Loads(full=Load(messages=full), quick=Load(messages=quick), smallest=Load(messages=smallest))


_ONE_EACH = _side("postroad, one process per task", _running(reusing=False))
_REUSING = _side("postroad, child_reuse=1000", _running(reusing=True))
_CELERY = Side(
    label="celery prefork",
    package="celery",
    needs=task_peers.redis_server,
    open=task_peers.celery(one_task_per_child=False),
)
_CELERY_ONE_EACH = Side(
    label="celery prefork, one task per child",
    package="celery",
    needs=task_peers.redis_server,
    open=task_peers.celery(one_task_per_child=True),
)
_DRAMATIQ = Side(label="dramatiq", package="dramatiq", needs=task_peers.redis_server, open=task_peers.dramatiq)
_DBOS = Side(label="DBOS on SQLite", package="dbos", open=task_peers.dbos)
_TASKS = _loads(600, 150, 6)

ROWS = [
    Row(
        name="tasks-each-celery-each",
        unit="per_second",
        target=2.0,
        loads=_loads(60, 20, 6),
        ours=_ONE_EACH,
        what="no-op tasks, durable, one process each, concurrency 3",
        peer=_CELERY_ONE_EACH,
    ),
    Row(
        name="tasks-each-celery",
        unit="per_second",
        target=0.15,
        loads=_TASKS,
        ours=_ONE_EACH,
        peer=_CELERY,
        what="no-op tasks, durable, one process each, beside lasting children",
    ),
    Row(
        name="tasks-each-dbos",
        unit="per_second",
        target=1.0,
        loads=_TASKS,
        ours=_ONE_EACH,
        peer=_DBOS,
        what="no-op tasks, durable, one process each, beside threads of one process",
    ),
    Row(
        name="tasks-reuse-celery",
        unit="per_second",
        target=1.1,
        loads=_TASKS,
        ours=_REUSING,
        peer=_CELERY,
        what="no-op tasks, durable, lasting children on both sides",
    ),
    Row(
        name="tasks-reuse-dramatiq",
        unit="per_second",
        target=0.75,
        loads=_TASKS,
        ours=_REUSING,
        peer=_DRAMATIQ,
        what="no-op tasks, durable, lasting children, beside three processes without results",
    ),
    Row(
        name="tasks-reuse-dbos",
        unit="per_second",
        target=3.0,
        loads=_TASKS,
        ours=_REUSING,
        peer=_DBOS,
        what="no-op tasks, durable, lasting children, beside threads of one process",
    ),
    Row(
        name="tasks-cost",
        unit="seconds",
        target=1 / 3,
        loads=_loads(200, 60, 3),
        ours=_side("postroad", _costing),
        what="from submit to recorded end of one no-op task, median",
        peer=_side("fork, pipe, wait and four commits", _bare),
    ),
    Row(
        name="tasks-wait",
        unit="seconds",
        target=1 / 1.3,
        loads=_loads(200, 60, 3),
        ours=_side("postroad, handle.wait", _waiting),
        what="from submit to the return of handle.wait of one no-op task, median",
        peer=_side("postroad, to the event Task Completed", _ending),
    ),
    Row(
        name="tasks-submit-many",
        unit="per_second",
        target=5.0,
        loads=_loads(2_000, 500, 100),
        ours=_side("postroad, submit_many, 100 at a time", _submitting(many=True)),
        what="submissions of tasks, 100 in a call",
        peer=_side("postroad, submit", _submitting(many=False)),
    ),
    Row(
        name="tasks-memory",
        unit="bytes",
        target=1.0,
        loads=_loads(10_000, 1_000, 20),
        ours=_side("postroad", _growing),
        peer=limit("limit of 10 MB", 10_000_000),
        what="what a worker's memory grows by over 10,000 tasks",
    ),
    Row(
        name="tasks-idle-cpu",
        unit="seconds",
        target=1.0,
        loads=_loads(100, 20, 5),
        ours=_side("postroad", _idling),
        what="CPU seconds per second of an idle worker with its zygote, keepers and children",
        peer=limit("limit of 2 %", 0.02),
    ),
]
