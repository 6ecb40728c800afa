"""An inbox on each database, and queues in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.inbox.fixtures import InboxFixture, inbox_fixture
from tests.inbox.mail import DEAD, FIFO
from tests.postgres import postgres, postgres_dsn

import postroad
from postroad import Backend, Queue
from postroad.inbox import Inbox

__all__ = ["postgres", "postgres_dsn"]


@pytest.fixture(params=["sqlite", "postgres"])
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InboxFixture]:
    """The inbox on SQLite, then on PostgreSQL."""
    sqlite = f"sqlite:///{tmp_path}/app.db"
    with inbox_fixture(sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")) as made:
        yield made


@pytest.fixture
def inbox(fixture: InboxFixture) -> Inbox:
    """The inbox of the fixture."""
    return fixture.inbox


@pytest.fixture
def threads() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Run a call on a thread; its outcome is the thread's `result()`. All have ended when the test ends."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield pool.submit


@pytest.fixture
def backend() -> Iterator[Backend]:
    with postroad.connect("memory://") as opened:
        yield opened


@pytest.fixture
def queue(backend: Backend) -> Queue:
    backend.create_queue(DEAD)
    return backend.create_queue(FIFO)


@pytest.fixture
def dead_letters(backend: Backend, queue: Queue) -> Queue:
    return backend.queue(DEAD.name)
