"""Databases of the user's own: opened here from a DSN, or on a connection that a caller brings, awaited or not.

No driver is imported here: a caller that brings a connection has imported its driver already.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec

from postroad.errors import ConfigurationError, DeadlockDetected, NotInTransaction, SchemaMismatch

if TYPE_CHECKING:
    from postroad.connections.postgres import PostgresDatabase


Row = tuple[Any, ...]
Dialect = Literal["postgresql", "sqlite"]
Mark = Literal["%s", "?", "$"]
"""How a driver marks a value: %s, ?, or $1, $2 and so on."""
ACCEPTED = "psycopg Connection, SQLAlchemy Connection or Session, Django's connection, sqlite3.Connection"
ACCEPTED_ASYNC = (
    "psycopg AsyncConnection, asyncpg Connection, SQLAlchemy AsyncConnection or AsyncSession, aiosqlite Connection"
)
_IDLE, _IN_ERROR = 0, 3
_MOST_IDLE = 4
_NO_TABLES = ("42P01", "42703", "3F000")
_DEADLOCK = "40P01"
_NO_TABLES_OF_SQLITE = ("no such table", "no such column")


class Caller(msgspec.Struct, frozen=True):
    """A caller's connection.

    Attributes:
        dialect: The kind of database.
        mark: Stands for a value in SQL; `marked` rewrites a statement with `?`.
        connection: The connection itself.
        execute: Runs one statement on the connection and returns what its rows can be read from.
        is_open: Returns whether what was done on it so far can still be committed.
    """

    dialect: Dialect
    mark: Mark
    connection: Any
    execute: Callable[[Any, str, Sequence[Any]], Any]
    is_open: Callable[[], bool]

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        # Reading waits for the outcome inside a pipeline too.
        return [tuple(row) for row in self.execute(self.connection, statement, values)]

    def insert(self, statement: str, values: Sequence[Any]) -> int:
        """Run one INSERT without RETURNING and return how many rows it inserted."""
        # PostgreSQL keeps what a statement returns until it has ended: that costs more than the count, which psycopg
        # has at once, except inside a pipeline.
        if self.execute is _with_psycopg and not self.connection.pgconn.pipeline_status:
            return int(_with_psycopg(self.connection, statement, values).rowcount)
        return len(self.rows(_returning(statement), values))

    def run(self, statement: str) -> None:
        """Run one statement without values that returns nothing."""
        self.execute(self.connection, statement, ())


class AsyncCaller(msgspec.Struct, frozen=True):
    """A caller's connection that is awaited, as `Caller` is one that is not; `rows` runs a statement."""

    dialect: Dialect
    mark: Mark
    rows: Callable[[str, Sequence[Any]], Awaitable[list[Row]]]
    is_open: Callable[[], bool]

    async def insert(self, statement: str, values: Sequence[Any]) -> int:
        return len(await self.rows(_returning(statement), values))


def in_transaction(connection: object) -> Caller:
    """Return the connection as a Caller, or raise `NotInTransaction` if it commits each statement by itself."""
    caller, commits = _recognised(connection)
    if commits:
        raise NotInTransaction(f"{type(connection).__qualname__} commits every statement by itself")
    return caller


async def in_async_transaction(connection: Any) -> AsyncCaller:
    """Return the connection as an AsyncCaller, or raise `NotInTransaction` if it commits each statement by itself."""
    if _is(connection, "psycopg", "AsyncConnection"):
        caller = _async_cursors(connection, "postgresql", "%s", partial(_cursor, connection))
        commits = _psycopg_commits(connection)
    elif _is(connection, "aiosqlite", "Connection"):
        caller, commits = _async_cursors(connection, "sqlite", "?", connection.cursor), _sqlite3_commits(connection)
    elif _is(connection, "asyncpg", "Connection") or _is(connection, "asyncpg.pool", "PoolConnectionProxy"):
        caller, commits = _asyncpg(connection), not connection.is_in_transaction()
    elif hasattr(connection, "run_sync"):
        caller, commits = await _async_sqlalchemy(connection), False
    else:
        raise TypeError(f"connection: {type(connection).__qualname__} is none of {ACCEPTED_ASYNC}")
    if commits:
        raise NotInTransaction(f"{type(connection).__qualname__} commits every statement by itself")
    return caller


def marked(statement: str, caller: Caller | AsyncCaller) -> str:
    """Return a statement with `?` for each value in the form that this caller's driver needs."""
    if caller.mark == "?":
        return statement
    return in_format_style(statement) if caller.mark == "%s" else _numbered(statement)


def lacks_tables(error: BaseException | None) -> bool:
    """Return whether a driver, or a library around it, reports that a table or column does not exist."""
    return any(state in _NO_TABLES or text.startswith(_NO_TABLES_OF_SQLITE) for state, text in _causes(error))


def is_deadlock(error: BaseException | None) -> bool:
    """Return whether a driver, or a library around it, reports that PostgreSQL ended the statement over a deadlock."""
    return any(state == _DEADLOCK for state, _ in _causes(error))


class Translation:
    """Raises Postroad's own errors for missing tables and a deadlock; all other errors pass.

    It is made once: a context manager made of a generator costs as much as all checks of an event.
    """

    def __init__(self, owner: str, *, locked: str, remedy: str) -> None:
        self._owner, self._locked, self._remedy = owner, locked, remedy

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None or not issubclass(kind, Exception):
            return
        if lacks_tables(error):
            raise SchemaMismatch(f"the tables of the {self._owner} are missing", remedy=self._remedy) from error
        if is_deadlock(error):
            raise DeadlockDetected(f"this transaction and another one wait for each other's {self._locked}") from error


def _causes(error: BaseException | None) -> Iterator[tuple[str | None, str]]:
    """Yield SQL state and text of the error and of those that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # psycopg2 calls it pgcode.
        yield getattr(error, "sqlstate", None) or getattr(error, "pgcode", None), str(error)
        error = getattr(error, "orig", None) or error.__cause__


@lru_cache(maxsize=512)
def in_format_style(statement: str) -> str:
    """Return a statement with `?` for each value with psycopg's own placeholders."""
    return statement.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=512)
def _returning(statement: str) -> str:
    return f"{statement} RETURNING 1"


@lru_cache(maxsize=512)
def _numbered(statement: str) -> str:
    first, *rest = statement.split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(rest, 1))


def _recognised(connection: Any) -> tuple[Caller, bool]:
    if _is(connection, "psycopg", "Connection"):
        is_open = partial(_is_open, connection, "postgresql", "%s")
        return Caller("postgresql", "%s", connection, _with_psycopg, is_open), _psycopg_commits(connection)
    if _is(connection, "sqlite3", "Connection"):
        is_open = partial(_is_open, connection, "sqlite", "?")
        return Caller("sqlite", "?", connection, _with_sqlite3, is_open), _sqlite3_commits(connection)
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


def _is_open(driver: Any, dialect: Dialect, mark: Mark) -> bool:
    """Return whether the driver's own connection is in a transaction that can be committed."""
    if mark == "$":
        return bool(driver.is_in_transaction())
    if dialect == "sqlite":
        return bool(driver.in_transaction)
    return driver.info.transaction_status not in (_IDLE, _IN_ERROR)


def _psycopg_commits(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == _IDLE


def _sqlite3_commits(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    # `autocommit` is there from Python 3.12 on; anything but True or False means that `isolation_level` decides.
    autocommit = getattr(connection, "autocommit", None)
    return autocommit is True or (autocommit is not False and connection.isolation_level is None)


def _cursor(connection: Any) -> Any:
    # The caller's own row factory may give anything.
    return connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row)


def _with_psycopg(connection: Any, statement: str, values: Sequence[Any]) -> Any:
    return _cursor(connection).execute(statement, values)


def _with_sqlite3(connection: Any, statement: str, values: Sequence[Any]) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, values)


def _async_cursors(connection: Any, dialect: Dialect, mark: Mark, opened: Callable[[], Any]) -> AsyncCaller:
    async def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        async with opened() as cursor:
            if dialect == "sqlite":
                cursor.row_factory = None
            await cursor.execute(sql, tuple(parameters))
            return list(await cursor.fetchall())

    return AsyncCaller(dialect, mark, rows, lambda: _is_open(connection, dialect, mark))


def _asyncpg(connection: Any) -> AsyncCaller:
    async def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        return [tuple(row) for row in await connection.fetch(sql, *parameters)]

    return AsyncCaller("postgresql", "$", rows, lambda: _is_open(connection, "postgresql", "$"))


def _sqlalchemy(connection: Any) -> tuple[Caller, bool]:
    dialect, style = _dialect(connection.dialect.name), connection.dialect.paramstyle
    mark: Mark = "?" if style == "qmark" else "$" if style == "numeric_dollar" else "%s"
    # The driver's connection knows only once SQLAlchemy has begun: a listener may send the BEGIN then.
    begun = None if connection.in_transaction() else connection.begin()
    driver = connection.connection.driver_connection
    if mark == "$":
        # asyncpg has no mode: SQLAlchemy begins for it with the first statement, unless it is set to autocommit.
        commits = connection.connection.dbapi_connection.autocommit and not driver.is_in_transaction()
    else:
        commits = _sqlite3_commits(driver) if dialect == "sqlite" else _psycopg_commits(driver)
    if commits and begun is not None:
        begun.rollback()

    is_open = lambda: _is_open(connection.connection.driver_connection, dialect, mark)  # noqa: E731
    return Caller(dialect, mark, connection, _with_sqlalchemy, is_open), bool(commits)


def _with_sqlalchemy(connection: Any, statement: str, values: Sequence[Any]) -> Any:
    # exec_driver_sql begins SQLAlchemy's own transaction; the driver's connection below it would not.
    return connection.exec_driver_sql(statement, tuple(values))


async def _async_sqlalchemy(connection: Any) -> AsyncCaller:
    # SQLAlchemy runs what is written for its synchronous connections on its asynchronous ones.
    inner: Caller = await connection.run_sync(in_transaction)

    async def rows(sql: str, parameters: Sequence[Any]) -> list[Row]:
        return list(await connection.run_sync(lambda _: inner.rows(sql, parameters)))

    return AsyncCaller(inner.dialect, inner.mark, rows, inner.is_open)


def _django(connection: Any) -> Caller:
    dialect = _dialect(connection.vendor)

    def is_open() -> bool:
        return _is_open(connection.connection, dialect, "%s") and not connection.needs_rollback

    return Caller(dialect, "%s", connection, _with_django, is_open)


def _with_django(connection: Any, statement: str, values: Sequence[Any]) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else ()


def _dialect(name: str) -> Dialect:
    if name in ("postgresql", "sqlite"):
        return cast("Dialect", name)
    raise TypeError(f"connection: a database of kind {name} is neither PostgreSQL nor SQLite")


class Session(Protocol):
    """One transaction. A statement has a `?` for each of its values."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of the statement."""
        ...

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run the statement and return how many rows it changed."""
        ...

    def script(self, statements: str) -> None:
        """Run several statements that have no values."""
        ...


class Database(Protocol):
    """Opens connections when they are needed, keeps a few, and translates the driver's errors."""

    def transaction(self) -> AbstractContextManager[Session]:
        """Return a transaction that commits at the end of the block; an exception rolls it back."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """Return a transaction that only reads."""
        ...

    def create(self) -> None:
        """Make the file if the database is a file and does not exist; a database on a server must exist."""
        ...

    def close(self) -> None:
        """Close all connections. A closed database opens again when it is used."""
        ...


C = TypeVar("C")


class IdleConnections(Generic[C]):
    """A few open connections between transactions; threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[C] = []
        weakref.finalize(self, _close_all, self._idle)

    def take(self) -> C | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def keep(self, connection: C) -> bool:
        """Keep the connection for later, unless there are enough; return whether it was kept."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return True
            return False

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


_SQLITE = "sqlite:///"


def dialect_of(dsn: object) -> Dialect:
    """Return the kind of database that a DSN names, or raise `ConfigurationError`."""
    if isinstance(dsn, str) and dsn.startswith(("postgresql://", "postgres://")):
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
    return dsn.removeprefix(_SQLITE)


def postgres_database(dsn: str, *, schema_remedy: str) -> PostgresDatabase:
    """Return a PostgreSQL database, not connected yet."""
    try:
        from postroad.connections.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "dsn: PostgreSQL needs psycopg", field="dsn", remedy="pip install 'postroad[postgres]'."
        ) from error
    return PostgresDatabase(dsn, schema_remedy=schema_remedy)


def file_database(path: str | Path, *, schema_remedy: str) -> Database:
    """Return a SQLite file, not opened yet."""
    from postroad.connections.application_file import ApplicationFile

    return ApplicationFile(path, schema_remedy=schema_remedy)


_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_identifier(name: object, field: str, *, most: int = 63) -> str:
    """Return the name, or raise `ConfigurationError` with the field. Names that get a suffix need a lower `most`."""
    if not isinstance(name, str) or len(name) > most or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{field}: {name!r} is not a name of a table, schema or column",
            field=field,
            remedy=f"Use 1 to {most} of a-z, 0-9 and '_', not beginning with a digit.",
        )
    return name
