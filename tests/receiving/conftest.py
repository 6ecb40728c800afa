"""A raw queue with dead letters, and one in order, on memory and SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postroad
from postroad import Backend, Queue, QueueSpec


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'postroad.db'}"
    with postroad.connect(url) as backend:
        yield backend


@pytest.fixture
def dead(backend: Backend) -> Queue:
    return backend.create_queue(QueueSpec("dead"))


@pytest.fixture
def queue(backend: Backend, dead: Queue) -> Queue:
    return backend.create_queue(QueueSpec("jobs", dead_letter="dead", max_receives=50))


@pytest.fixture
def fifo(backend: Backend) -> Queue:
    return backend.create_queue(QueueSpec("jobs.fifo", fifo=True))
