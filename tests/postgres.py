"""A PostgreSQL for tests: the one at $PG_DSN, else one of its own for each test process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from benchmarks.postgres import database, programs, running

_QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "1s",
}


def postgres_server(directory: Path, **settings: str) -> AbstractContextManager[str]:
    """A PostgreSQL of one's own below the directory; the DSN of its database `postgres`, as superuser."""
    if programs() is None:
        _missing("absent: PostgreSQL is not installed; `make setup` installs one, or set PG_DSN")
    return running(directory, **(_QUICK | settings))


def fresh_database(server: str) -> AbstractContextManager[str]:
    """A database of the test's own on the server; its DSN."""
    return database(server)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a server on which databases may be made."""
    if (dsn := os.environ.get("PG_DSN")) is not None:
        yield dsn
        return
    with postgres_server(tmp_path_factory.mktemp("pg")) as dsn:
        yield dsn


@pytest.fixture
def postgres_dsn(postgres: str) -> Iterator[str]:
    """The DSN of an empty database of the test's own."""
    with fresh_database(postgres) as dsn:
        yield dsn


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
