"""Tasks in an outbox, on either database: they are submitted if and only if their transaction commits, and once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.outbox.fixtures import OutboxFixture
from tests.tasks import errands
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.outbox import OutboxDispatcher
from postroad.tasks import TaskProducer

pytestmark = pytest.mark.slow


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{tmp_path / 'work.db'}") as opened:
        yield opened


def waiting(backend: Backend) -> int:
    return backend.queue("tasks").stats().visible


def test_a_task_is_submitted_if_and_only_if_the_transaction_commits(fixture: OutboxFixture, backend: Backend) -> None:
    producer = TaskProducer(backend, outbox=fixture.outbox)
    with fixture.connection() as connection:
        producer.options(within=connection, request_id="kept").submit(errands.scrape, "s1")
        connection.commit()
        producer.options(within=connection, request_id="gone").submit(errands.scrape, "s2")

    report = OutboxDispatcher(fixture.outbox, backend.topic("shop")).drain()

    assert (report.sent, waiting(backend)) == (1, 1)
    assert producer.handle("kept").run == 1
    assert producer.status("gone") is None


def test_an_async_program_adds_tasks_on_its_own_connection(on_postgres: OutboxFixture, backend: Backend) -> None:
    producer = TaskProducer(backend, outbox=on_postgres.outbox)

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(on_postgres.dsn) as connection:
            await producer.options(within=connection, request_id="kept").asubmit(errands.scrape, "s1")
            await connection.commit()
            await producer.options(within=connection, request_id="gone").asubmit(errands.scrape, "s2")
            await connection.rollback()

    asyncio.run(main())

    assert OutboxDispatcher(on_postgres.outbox, backend.topic("shop")).drain().sent == 1
    assert producer.handle("kept").run == 1


@pytest.mark.parametrize("failpoint", ["outbox.after_claim", "outbox.after_publish", "outbox.before_settle"])
def test_a_dispatcher_that_is_killed_anywhere_submits_each_task_once(
    on_sqlite: OutboxFixture, backend: Backend, failpoint: str
) -> None:
    producer = TaskProducer(backend, outbox=on_sqlite.outbox)
    with on_sqlite.connection() as connection:
        producer.options(within=connection).submit_many([("echo", {"n": n}) for n in range(5)])
        connection.commit()
    command = [sys.executable, "-m", "postroad", "outbox", "run", "--topic", "shop", "--create-topic", "--drain"]
    command += ["--dsn", on_sqlite.dsn, "--url", backend.url, "--lease", "1s"]

    killed = subprocess.run(command, env={**os.environ, "POSTROAD_FAILPOINTS": f"{failpoint}=kill9#1"})

    def dispatched() -> bool:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return on_sqlite.outbox.status().sent == 5

    eventually(dispatched)
    assert killed.returncode == -9
    assert waiting(backend) == 5
