"""Connections that callers bring: psycopg, SQLAlchemy, Django or sqlite3, spoken to in their own transaction.

No driver is imported here: whoever holds a connection has imported its driver already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from postroad.errors import NotInTransaction

Dialect = Literal["postgresql", "sqlite"]
Row = tuple[Any, ...]
ACCEPTED = "psycopg Connection, SQLAlchemy Connection or Session, Django's connection, sqlite3.Connection"
_IDLE, _IN_ERROR = 0, 3
_NO_TABLES = ("42P01", "42703", "3F000")
_NO_TABLES_OF_SQLITE = ("no such table", "no such column")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller's connection: `rows(sql, parameters)` runs one statement on it and gives what it returned.

    `mark` stands for a value in the SQL; `marked` puts it into a statement that is written with `?`.
    """

    dialect: Dialect
    mark: Literal["%s", "?"]
    rows: Callable[[str, Sequence[Any]], list[Row]]
    is_open: Callable[[], bool]
    """Whether what was done on it so far can still be committed."""


def in_transaction(connection: object) -> Caller:
    """The connection as a Caller; one that would commit each statement by itself is refused."""
    caller, commits = _recognised(connection)
    if commits:
        raise NotInTransaction(f"{type(connection).__qualname__} commits every statement by itself")
    return caller


def marked(statement: str, caller: Caller) -> str:
    """The statement, in which `?` stands for each value, as this caller's driver wants it."""
    return statement if caller.mark == "?" else _in_format_style(statement)


def lacks_tables(error: BaseException | None) -> bool:
    """Whether a driver, or a library around it, says that a table or column does not exist."""
    if error is None:
        return False
    if getattr(error, "sqlstate", None) in _NO_TABLES or str(error).startswith(_NO_TABLES_OF_SQLITE):
        return True
    return lacks_tables(getattr(error, "orig", None) or error.__cause__)


@lru_cache(maxsize=512)
def _in_format_style(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def _recognised(connection: Any) -> tuple[Caller, bool]:
    if _is(connection, "psycopg", "Connection"):
        return _psycopg(connection), _psycopg_commits(connection)
    if _is(connection, "sqlite3", "Connection"):
        return _sqlite3(connection), _sqlite3_commits(connection)
    if _is(connection, "sqlalchemy.orm", "Session") or _is(connection, "sqlalchemy.orm", "scoped_session"):
        return _sqlalchemy(connection.connection())
    if _is(connection, "sqlalchemy", "Connection"):
        return _sqlalchemy(connection)
    if _is(connection, "django.db.backends.base.base", "BaseDatabaseWrapper") or _is(
        connection, "django.utils.connection", "ConnectionProxy"
    ):
        return _django(connection), bool(connection.get_autocommit())
    raise TypeError(f"connection: {type(connection).__qualname__} is none of {ACCEPTED}")


def _is(connection: object, module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(connection, getattr(found, name))


def _psycopg(connection: Any) -> Caller:
    tuple_row = sys.modules["psycopg"].rows.tuple_row

    def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        # The caller's own row factory may give anything; and fetching waits for the outcome inside a pipeline too.
        with connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    return Caller(dialect="postgresql", mark="%s", rows=rows, is_open=lambda: _psycopg_is_open(connection))


def _psycopg_commits(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == _IDLE


def _psycopg_is_open(connection: Any) -> bool:
    return connection.info.transaction_status not in (_IDLE, _IN_ERROR)


def _sqlite3(connection: Any) -> Caller:
    def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        cursor = connection.cursor()
        cursor.row_factory = None
        return list(cursor.execute(sql, tuple(parameters)).fetchall())

    return Caller(dialect="sqlite", mark="?", rows=rows, is_open=lambda: connection.in_transaction)


def _sqlite3_commits(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    # `autocommit` is there from Python 3.12 on; anything but True or False means that `isolation_level` decides.
    autocommit = getattr(connection, "autocommit", None)
    return autocommit is True or (autocommit is not False and connection.isolation_level is None)


def _sqlalchemy(connection: Any) -> tuple[Caller, bool]:
    dialect = _dialect(connection.dialect.name)
    mark: Literal["%s", "?"] = "?" if connection.dialect.paramstyle == "qmark" else "%s"

    def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        # exec_driver_sql begins SQLAlchemy's own transaction; the driver's connection below it would not.
        result = connection.exec_driver_sql(sql, tuple(parameters))
        return [tuple(row) for row in result] if result.returns_rows else []

    def is_open() -> bool:
        below = connection.connection.driver_connection
        return bool(below.in_transaction) if dialect == "sqlite" else _psycopg_is_open(below)

    caller = Caller(dialect=dialect, mark=mark, rows=rows, is_open=is_open)
    return caller, _sqlalchemy_commits(connection, dialect)


def _sqlalchemy_commits(connection: Any, dialect: Dialect) -> bool:
    """Ask the driver's connection, once SQLAlchemy has begun: a listener may send the BEGIN only then."""
    begun = None if connection.in_transaction() else connection.begin()
    below = connection.connection.driver_connection
    commits = _sqlite3_commits(below) if dialect == "sqlite" else _psycopg_commits(below)
    if commits and begun is not None:
        begun.rollback()
    return commits


def _django(connection: Any) -> Caller:
    def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def is_open() -> bool:
        below = connection.connection
        open_below = below.in_transaction if connection.vendor == "sqlite" else _psycopg_is_open(below)
        return bool(open_below) and not connection.needs_rollback

    return Caller(dialect=_dialect(connection.vendor), mark="%s", rows=rows, is_open=is_open)


def _dialect(name: str) -> Dialect:
    if name == "postgresql" or name == "sqlite":
        return "postgresql" if name == "postgresql" else "sqlite"
    raise TypeError(f"connection: a database of kind {name} is neither PostgreSQL nor SQLite")
