"""Databases for the tests of the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.outbox.grounds import Ground, postgres_ground, sqlite_ground
from tests.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]


@pytest.fixture
def on_postgres(postgres_dsn: str) -> Iterator[Ground]:
    ground = postgres_ground(postgres_dsn)
    yield ground
    ground.outbox.close()


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Ground]:
    ground = sqlite_ground(tmp_path / "app.db")
    yield ground
    ground.outbox.close()


@pytest.fixture(params=["on_postgres", "on_sqlite"])
def ground(request: pytest.FixtureRequest) -> Ground:
    """An outbox on each database in turn: what holds on one holds on the other."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Ground)
    return found
