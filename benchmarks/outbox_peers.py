"""Job queues on PostgreSQL that people use for the same work; a job of theirs is one call to the publisher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import postgres
from benchmarks.frame import Load, Open, Opened, WrongResult

CONCURRENCY = 10
Drain = Callable[[str, int, float], Awaitable[tuple[float, int]]]
"""Adds so many jobs of so many seconds and runs them; the seconds until the last was done, and how many ran."""


def draining(drain: Drain) -> Callable[[float], Open]:
    """A side that runs no-op jobs; jobs per second."""

    def with_calls_of(seconds: float) -> Open:
        @contextmanager
        def opened(directory: Path, load: Load) -> Iterator[Opened]:
            with ExitStack() as stack:
                server = stack.enter_context(postgres.shared(directory))
                yield Opened(lambda: _round(server, drain, load.messages, seconds))

        return opened

    return with_calls_of


def _round(server: str, drain: Drain, jobs: int, seconds: float) -> float:
    with postgres.database(server) as dsn:
        elapsed, done = asyncio.run(_limited(drain(dsn, jobs, seconds)))
    if done != jobs:
        raise WrongResult(f"{jobs} wanted, {done} done")
    return jobs / elapsed


async def _limited(work: Awaitable[tuple[float, int]]) -> tuple[float, int]:
    return await asyncio.wait_for(work, 600)


async def _procrastinate(dsn: str, jobs: int, seconds: float) -> tuple[float, int]:
    import procrastinate

    done, ended = 0, 0.0
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, max_size=CONCURRENCY + 2))

    @app.task(name="publish")
    async def publish(n: int) -> None:
        nonlocal done, ended
        await asyncio.sleep(seconds)
        done, ended = done + 1, time.perf_counter()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        given: list[dict[str, Any]] = [{"n": n} for n in range(jobs)]
        await publish.batch_defer_async(*given)
        started = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
        return ended - started, done


async def _pgqueuer(dsn: str, jobs: int, seconds: float) -> tuple[float, int]:
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.qm import QueueManager
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    done, ended = 0, 0.0
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        queries: Any = Queries(PsycopgDriver(connection))
        await queries.install()
        await queries.enqueue(["publish"] * jobs, [b"{}"] * jobs, [0] * jobs)
        manager = QueueManager(queries)

        @manager.entrypoint("publish")
        async def publish(job: Any) -> None:
            nonlocal done, ended
            await asyncio.sleep(seconds)
            done, ended = done + 1, time.perf_counter()

        started = time.perf_counter()
        await manager.run(batch_size=100, mode=QueueExecutionMode.drain)
        return ended - started, done


PROCRASTINATE = draining(_procrastinate)
PGQUEUER = draining(_pgqueuer)
