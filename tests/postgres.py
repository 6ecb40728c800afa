"""PostgreSQL for tests: the server at $PG_DSN, or a server for each test process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from benchmarks.postgres import database, programs, running
from tests.sharing import shared

_QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "10s",
}
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_WRITABLE = "-cdefault_transaction_read_only=off"
_EMPTY = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC"

_reused: dict[str, str] = {}
"""The database that the tests of each server use in turn."""


def postgres_server(directory: Path, **settings: str) -> AbstractContextManager[str]:
    """Start a PostgreSQL in the directory and return the superuser's DSN of its database `postgres`."""
    if programs() is None:
        pytest.skip("absent: PostgreSQL is not installed; `make setup` installs one, or set PG_DSN")
    return running(directory, **(_QUICK | settings))


def fresh_database(server: str) -> AbstractContextManager[str]:
    """Make a database on the server and return its DSN."""
    return database(server)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a server on which tests may make databases."""
    with shared("postgres", lambda: _with_a_database(tmp_path_factory)) as dsn:
        yield dsn


@contextmanager
def _with_a_database(factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        dsn = os.environ.get("PG_DSN") or stack.enter_context(postgres_server(factory.mktemp("pg")))
        _reused[dsn] = stack.enter_context(fresh_database(dsn))
        yield dsn


@pytest.fixture
def postgres_dsn(postgres: str) -> Iterator[str]:
    """The DSN of an empty database, which the tests of this process share: it is quicker to empty than to make."""
    yield _reused[postgres]
    # A test may have made the database read-only.
    with psycopg.connect(_reused[postgres], autocommit=True, options=_WRITABLE) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" RESET ALL')
        connection.execute(_END_OTHERS)
        connection.execute(_EMPTY)
