"""Databases for the tests of the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.outbox.fixtures import OutboxFixture, postgres_fixture, sqlite_fixture
from tests.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]


@pytest.fixture
def on_postgres(postgres_dsn: str) -> Iterator[OutboxFixture]:
    fixture = postgres_fixture(postgres_dsn)
    yield fixture
    fixture.outbox.close()


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[OutboxFixture]:
    fixture = sqlite_fixture(tmp_path / "app.db")
    yield fixture
    fixture.outbox.close()


@pytest.fixture(params=["on_postgres", "on_sqlite"])
def fixture(request: pytest.FixtureRequest) -> OutboxFixture:
    """An outbox on each database in turn: what holds on one holds on the other."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, OutboxFixture)
    return found
