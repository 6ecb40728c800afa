"""Backends for buses: memory and one SQLite file, with the machine's clock or one that a test moves."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from tests.bus.vocabulary import QUICK
from tests.memory import memory_queues

import postroad
from postroad import Backend, Clock, Queue, QueueSpec, SendResult
from postroad.bus import BusConfig, CircuitBreakerConfig, RemoteEventBus
from postroad.bus.endpoints import Outlet, Send, given_queue
from postroad.clock import SYSTEM_CLOCK
from postroad.inbox import Inbox
from postroad.queues.sqlite import SQLiteQueues
from postroad.receiving import OwnDeadLetters
from postroad.testing import FakeClock

MakeBus = Callable[..., RemoteEventBus]
Opens = Callable[[], Any]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'bus.db'}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as backend:
        yield backend


@pytest.fixture
def slow_backend(url: str, clock: FakeClock) -> Iterator[Backend]:
    """Its time passes only when the test lets it."""
    with postroad.connect(url, clock=clock) as backend:
        yield backend


@pytest.fixture
def queues(clock: FakeClock) -> SQLiteQueues:
    return memory_queues(clock)


@pytest.fixture
def queue(queues: SQLiteQueues) -> Queue:
    """A standard queue with dead letters, in the time of the test."""
    queues.create_queue(QueueSpec("work-dead"))
    return queues.create_queue(QueueSpec("work", dead_letter="work-dead", max_receives=100))


@pytest.fixture
def fifo_queue(queues: SQLiteQueues) -> Queue:
    queues.create_queue(QueueSpec("work-dead.fifo", fifo=True))
    return queues.create_queue(QueueSpec("work.fifo", fifo=True, dead_letter="work-dead.fifo", max_receives=100))


@pytest.fixture
def make_bus(clock: FakeClock) -> Iterator[MakeBus]:
    """Buses on a queue, work sharing as on SQS; all are closed at the end."""
    made: list[RemoteEventBus] = []

    def make(
        queue: Queue,
        config: BusConfig = QUICK,
        *,
        send: Send | None = None,
        dead_letters: bool = True,
        breaker: CircuitBreakerConfig | None = None,
        clock: Clock = clock,
    ) -> RemoteEventBus:
        bus = RemoteEventBus(
            outlet=Outlet(name=queue.name, send=send or queue.send, fifo=queue.name.endswith(".fifo")),
            inlet=given_queue(queue),
            dead_letters=OwnDeadLetters() if dead_letters else None,
            config=config,
            clock=clock,
            breaker=breaker,
        )
        made.append(bus)
        return bus

    yield make
    for bus in made:
        bus.close()


@pytest.fixture
def system_clock() -> Clock:
    return SYSTEM_CLOCK


def failing(error: Exception) -> Send:
    """A transport on which nothing gets through."""
    return lambda messages: [SendResult(ok=False, error=error) for _ in messages]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE ledger (number INTEGER)")
    return tmp_path / "shop.db"


@pytest.fixture
def inbox(shop: Path) -> Any:
    with Inbox.sqlite(str(shop)) as inbox:
        inbox.init()
        yield inbox


@pytest.fixture
def transaction(shop: Path) -> Opens:
    @asynccontextmanager
    async def opened() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(shop, timeout=30) as connection:
            yield connection
            await connection.commit()

    return opened
