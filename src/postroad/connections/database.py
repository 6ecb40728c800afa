"""A database of the user's own, as outbox and inbox see it: short transactions of statements with bound values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from postroad.connections.callers import Dialect, Row
from postroad.errors import ConfigurationError

if TYPE_CHECKING:
    from postroad.connections.postgres import PostgresDatabase


class Session(Protocol):
    """One transaction. A statement has a `?` for each of its values."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """What the statement returns."""
        ...

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        """How many rows the statement changed."""
        ...

    def script(self, statements: str) -> None:
        """Run several statements that have no values."""
        ...


class Database(Protocol):
    """Opens connections when they are needed, keeps a few, and translates the driver's errors."""

    def transaction(self) -> AbstractContextManager[Session]:
        """A transaction that commits at the end of the block; an exception rolls it back."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """A transaction that only looks."""
        ...

    def create(self) -> None:
        """Make the file where the database is one and is missing; a server has its databases made by others."""
        ...

    def close(self) -> None:
        """Close what is open. A closed database opens again when it is used."""
        ...


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
        "dsn: names neither PostgreSQL nor a SQLite file",
        field="dsn",
        remedy="Use postgresql://user@host/database or sqlite:///path.",
    )


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


MOST = 63
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_identifier(name: object, field: str, *, most: int = MOST) -> str:
    """The name, or ConfigurationError naming the field. A name to which endings are added needs a lower `most`."""
    if not isinstance(name, str) or len(name) > most or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{field}: {name!r} is no name of a table, schema or column",
            field=field,
            remedy=f"Use 1 to {most} of a-z, 0-9 and '_', not beginning with a digit.",
        )
    return name
