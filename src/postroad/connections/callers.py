"""Connections that callers bring, awaited ones included, spoken to in the callers' own transactions.

No driver is imported here: whoever holds a connection has imported its driver already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

from postroad.errors import NotInTransaction

Row = tuple[Any, ...]
Dialect = Literal["postgresql", "sqlite"]
Mark = Literal["%s", "?", "$"]
"""How a driver marks a value: %s, ?, or $1, $2 and so on."""
ACCEPTED = "psycopg Connection, SQLAlchemy Connection or Session, Django's connection, sqlite3.Connection"
ACCEPTED_ASYNC = (
    "psycopg AsyncConnection, asyncpg Connection, SQLAlchemy AsyncConnection or AsyncSession, aiosqlite Connection"
)
_IDLE, _IN_ERROR = 0, 3
_NO_TABLES = ("42P01", "42703", "3F000")
_DEADLOCK = "40P01"
_NO_TABLES_OF_SQLITE = ("no such table", "no such column")


class Caller(Protocol):
    """A caller's connection.

    `mark` stands for a value in the SQL; `marked` puts it into a statement that is written with `?`.
    """

    @property
    def dialect(self) -> Dialect: ...

    @property
    def mark(self) -> Mark: ...

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement that returns rows; what it returned."""
        ...

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run one statement that returns nothing."""
        ...

    def is_open(self) -> bool:
        """Whether what was done on it so far can still be committed."""
        ...


def in_transaction(connection: object) -> Caller:
    """The connection as a Caller; one that would commit each statement by itself is refused."""
    caller, commits = _recognised(connection)
    if commits:
        raise NotInTransaction(f"{type(connection).__qualname__} commits every statement by itself")
    return caller


class AsyncCaller(Protocol):
    """A caller's connection that is awaited."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def mark(self) -> Mark: ...

    async def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement that returns rows; what it returned."""
        ...

    def is_open(self) -> bool:
        """Whether what was done on it so far can still be committed."""
        ...


async def in_async_transaction(connection: Any) -> AsyncCaller:
    """The connection as an AsyncCaller; one that would commit each statement by itself is refused."""
    caller: AsyncCaller
    if _is(connection, "psycopg", "AsyncConnection"):
        caller, commits = _AsyncPsycopg(connection), _psycopg_commits(connection)
    elif _is(connection, "aiosqlite", "Connection"):
        caller, commits = _Aiosqlite(connection), _sqlite3_commits(connection)
    elif _is(connection, "asyncpg", "Connection") or _is(connection, "asyncpg.pool", "PoolConnectionProxy"):
        caller, commits = _Asyncpg(connection), not connection.is_in_transaction()
    elif hasattr(connection, "run_sync"):
        # SQLAlchemy runs what is written for its synchronous connections on its asynchronous ones.
        return _AsyncSqlalchemy(connection, await connection.run_sync(in_transaction))
    else:
        raise TypeError(f"connection: {type(connection).__qualname__} is none of {ACCEPTED_ASYNC}")
    if commits:
        raise NotInTransaction(f"{type(connection).__qualname__} commits every statement by itself")
    return caller


def marked(statement: str, caller: Caller | AsyncCaller) -> str:
    """The statement, in which `?` stands for each value, as this caller's driver wants it."""
    if caller.mark == "?":
        return statement
    return _in_format_style(statement) if caller.mark == "%s" else _numbered(statement)


def lacks_tables(error: BaseException | None) -> bool:
    """Whether a driver, or a library around it, says that a table or column does not exist."""
    if error is None:
        return False
    # psycopg2 calls it pgcode.
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state in _NO_TABLES or str(error).startswith(_NO_TABLES_OF_SQLITE):
        return True
    return lacks_tables(getattr(error, "orig", None) or error.__cause__)


def is_deadlock(error: BaseException | None) -> bool:
    """Whether a driver, or a library around it, says that PostgreSQL ended the statement to break a deadlock."""
    if error is None:
        return False
    if _DEADLOCK in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
        return True
    return is_deadlock(getattr(error, "orig", None) or error.__cause__)


@lru_cache(maxsize=512)
def _in_format_style(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=512)
def _numbered(statement: str) -> str:
    first, *rest = statement.split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(rest, 1))


def _recognised(connection: Any) -> tuple[Caller, bool]:
    if _is(connection, "psycopg", "Connection"):
        return _Psycopg(connection), _psycopg_commits(connection)
    if _is(connection, "sqlite3", "Connection"):
        return _Sqlite3(connection), _sqlite3_commits(connection)
    if _is(connection, "sqlalchemy.orm", "Session") or _is(connection, "sqlalchemy.orm", "scoped_session"):
        return _sqlalchemy(connection.connection())
    if _is(connection, "sqlalchemy", "Connection"):
        return _sqlalchemy(connection)
    if _is(connection, "django.db.backends.base.base", "BaseDatabaseWrapper") or _is(
        connection, "django.utils.connection", "ConnectionProxy"
    ):
        return _Django(connection, _dialect(connection.vendor)), bool(connection.get_autocommit())
    raise TypeError(f"connection: {type(connection).__qualname__} is none of {ACCEPTED}")


def _is(connection: object, module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(connection, getattr(found, name))


@dataclass(frozen=True, slots=True)
class _Psycopg:
    connection: Any
    dialect: Dialect = "postgresql"
    mark: Mark = "%s"

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        # Fetching waits for the outcome inside a pipeline too.
        found: list[Row] = self._cursor().execute(sql, parameters).fetchall()
        return found

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self._cursor().execute(sql, parameters)

    def is_open(self) -> bool:
        return _psycopg_is_open(self.connection)

    def _cursor(self) -> Any:
        # The caller's own row factory may give anything.
        return self.connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row)


def _psycopg_commits(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == _IDLE


def _psycopg_is_open(connection: Any) -> bool:
    return connection.info.transaction_status not in (_IDLE, _IN_ERROR)


@dataclass(frozen=True, slots=True)
class _AsyncPsycopg:
    connection: Any
    dialect: Dialect = "postgresql"
    mark: Mark = "%s"

    async def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        async with self.connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            await cursor.execute(sql, parameters)
            found: list[Row] = await cursor.fetchall()
            return found

    def is_open(self) -> bool:
        return _psycopg_is_open(self.connection)


@dataclass(frozen=True, slots=True)
class _Asyncpg:
    connection: Any
    dialect: Dialect = "postgresql"
    mark: Mark = "$"

    async def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        return [tuple(row) for row in await self.connection.fetch(sql, *parameters)]

    def is_open(self) -> bool:
        return bool(self.connection.is_in_transaction())


@dataclass(frozen=True, slots=True)
class _Aiosqlite:
    connection: Any
    dialect: Dialect = "sqlite"
    mark: Mark = "?"

    async def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        async with self.connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(sql, tuple(parameters))
            return list(await cursor.fetchall())

    def is_open(self) -> bool:
        return bool(self.connection.in_transaction)


@dataclass(frozen=True, slots=True)
class _AsyncSqlalchemy:
    connection: Any
    inner: Caller

    @property
    def dialect(self) -> Dialect:
        return self.inner.dialect

    @property
    def mark(self) -> Mark:
        return self.inner.mark

    async def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        found: list[Row] = await self.connection.run_sync(lambda _: self.inner.rows(sql, parameters))
        return found

    def is_open(self) -> bool:
        return self.inner.is_open()


@dataclass(frozen=True, slots=True)
class _Sqlite3:
    connection: Any
    dialect: Dialect = "sqlite"
    mark: Mark = "?"

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return list(cursor.execute(sql, tuple(parameters)).fetchall())

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.connection.cursor().execute(sql, tuple(parameters))

    def is_open(self) -> bool:
        return bool(self.connection.in_transaction)


def _sqlite3_commits(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    # `autocommit` is there from Python 3.12 on; anything but True or False means that `isolation_level` decides.
    autocommit = getattr(connection, "autocommit", None)
    return autocommit is True or (autocommit is not False and connection.isolation_level is None)


@dataclass(frozen=True, slots=True)
class _Sqlalchemy:
    connection: Any
    dialect: Dialect
    mark: Mark

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        # exec_driver_sql begins SQLAlchemy's own transaction; the driver's connection below it would not.
        return [tuple(row) for row in self.connection.exec_driver_sql(sql, tuple(parameters))]

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.connection.exec_driver_sql(sql, tuple(parameters))

    def is_open(self) -> bool:
        below = self.connection.connection.driver_connection
        if self.mark == "$":
            return bool(below.is_in_transaction())
        return bool(below.in_transaction) if self.dialect == "sqlite" else _psycopg_is_open(below)


def _sqlalchemy(connection: Any) -> tuple[Caller, bool]:
    dialect, style = _dialect(connection.dialect.name), connection.dialect.paramstyle
    mark: Mark = "?" if style == "qmark" else "$" if style == "numeric_dollar" else "%s"
    caller = _Sqlalchemy(connection, dialect, mark)
    return caller, _sqlalchemy_commits(caller)


def _sqlalchemy_commits(caller: _Sqlalchemy) -> bool:
    """Ask the driver's connection, once SQLAlchemy has begun: a listener may send the BEGIN only then."""
    connection = caller.connection
    begun = None if connection.in_transaction() else connection.begin()
    below = connection.connection.driver_connection
    if caller.mark == "$":
        # asyncpg has no mode: SQLAlchemy begins for it with the first statement, unless it is told to autocommit.
        commits = connection.connection.dbapi_connection.autocommit and not below.is_in_transaction()
    else:
        commits = _sqlite3_commits(below) if caller.dialect == "sqlite" else _psycopg_commits(below)
    if commits and begun is not None:
        begun.rollback()
    return bool(commits)


@dataclass(frozen=True, slots=True)
class _Django:
    connection: Any
    dialect: Dialect
    mark: Mark = "%s"

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def is_open(self) -> bool:
        below = self.connection.connection
        open_below = below.in_transaction if self.dialect == "sqlite" else _psycopg_is_open(below)
        return bool(open_below) and not self.connection.needs_rollback


def _dialect(name: str) -> Dialect:
    if name == "postgresql" or name == "sqlite":
        return "postgresql" if name == "postgresql" else "sqlite"
    raise TypeError(f"connection: a database of kind {name} is neither PostgreSQL nor SQLite")
