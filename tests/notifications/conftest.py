"""Stores on both databases, and a backend with the queues of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres import postgres, postgres_dsn

from postroad import connect
from postroad.notifications import NotificationStore
from postroad.queues import QueueSpec
from postroad.wiring import Backend

__all__ = ["postgres", "postgres_dsn"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NotificationStore]:
    with NotificationStore(f"sqlite:///{tmp_path}/chat.db") as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres"])
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotificationStore]:
    """A store on each database in turn: what holds on one holds on the other."""
    on_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/chat.db" if on_sqlite else request.getfixturevalue("postgres_dsn")
    with NotificationStore(url) as store:
        yield store


@pytest.fixture
def backend() -> Iterator[Backend]:
    with connect("memory://") as backend:
        for name in ("push", "offline"):
            backend.create_queue(QueueSpec(f"{name}-dlq", retention=1_209_600))
            backend.create_queue(QueueSpec(f"{name}-queue", dead_letter=f"{name}-dlq"))
        yield backend
