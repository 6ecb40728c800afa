"""A database of the user's own by its DSN: `postgresql://…` or `sqlite:///path`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postroad.connections.callers import Dialect
from postroad.connections.database import Database
from postroad.errors import ConfigurationError

if TYPE_CHECKING:
    from postroad.connections.postgres import PostgresDatabase

_POSTGRES = ("postgresql://", "postgres://")
_SQLITE = "sqlite:///"


def dialect_of(dsn: object) -> Dialect:
    """Which database a DSN names; ConfigurationError when it names none that is known here."""
    if isinstance(dsn, str) and dsn.startswith(_POSTGRES):
        return "postgresql"
    if isinstance(dsn, str) and dsn.startswith(_SQLITE) and len(dsn) > len(_SQLITE):
        return "sqlite"
    # The DSN itself may hold a password and is not shown.
    raise ConfigurationError(
        "dsn: names neither PostgreSQL nor a SQLite file", field="dsn",
        remedy="Use postgresql://user@host/database or sqlite:///path.",
    )  # fmt: skip


def path_of(dsn: str) -> str:
    """The file that a DSN of SQLite names."""
    return dsn.removeprefix(_SQLITE)


def postgres_database(dsn: str, *, schema_remedy: str) -> PostgresDatabase:
    """PostgreSQL; nothing is connected yet."""
    try:
        from postroad.connections.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "dsn: PostgreSQL needs psycopg", field="dsn", remedy="pip install 'postroad[postgres]'."
        ) from error
    return PostgresDatabase(dsn, schema_remedy=schema_remedy)


def file_database(path: str | Path, *, schema_remedy: str) -> Database:
    """A SQLite file; nothing is opened yet."""
    from postroad.connections.application_file import ApplicationFile

    return ApplicationFile(path, schema_remedy=schema_remedy)
