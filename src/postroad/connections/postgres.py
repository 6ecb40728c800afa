"""PostgreSQL of the user's own: connections, short transactions, and psycopg's errors translated into Postroad's.

Nothing here needs a session of the server: it uses no session locks or prepared statements and works with poolers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from postroad import errors
from postroad.connections.database import IdleConnections, Row, in_format_style

# A server that vanished silently, as in a failover, is noticed within seconds instead of hours.
_DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "application_name": "postroad",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_SHOWN: Final = 300
_NO_TABLES = (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction)


class PostgresSession:
    """One transaction on PostgreSQL."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.connection = connection

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return self.connection.execute(in_format_style(statement).encode(), values).fetchall()

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        return self.connection.execute(in_format_style(statement).encode(), values).rowcount

    def script(self, statements: str) -> None:
        self.connection.execute(statements.encode())


class PostgresDatabase:
    """Connections to one PostgreSQL, opened when they are needed; a few are kept open between transactions."""

    def __init__(self, dsn: str, *, schema_remedy: str) -> None:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.Error:
            # The driver's text would show a part of the DSN, which may be its password; so would the chain of causes.
            raise errors.ConfigurationError(
                "dsn: is not a DSN of PostgreSQL", field="dsn", remedy="Use postgresql://user@host/database."
            ) from None
        self._dsn = dsn
        self._defaults = {name: value for name, value in _DEFAULTS.items() if name not in given}
        self._schema_remedy = schema_remedy
        self._idle: IdleConnections[psycopg.Connection[Row]] = IdleConnections()

    def transaction(self) -> AbstractContextManager[PostgresSession]:
        return self._transaction("BEGIN ISOLATION LEVEL READ COMMITTED")

    def reading(self) -> AbstractContextManager[PostgresSession]:
        return self._transaction("BEGIN READ ONLY")

    def connect(self) -> psycopg.Connection[Row]:
        """Return a connection in autocommit mode, which the caller must close."""
        try:
            return psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None, **self._defaults)
        except psycopg.Error as error:
            raise errors.Unavailable(
                f"PostgreSQL cannot be reached: {_text(error)}",
                remedy="Check the address, the network and the credentials in the DSN.",
            ) from error

    def create(self) -> None:
        """Do nothing: the DSN names a database that exists."""

    def close(self) -> None:
        self._idle.close()

    def translate(self, error: psycopg.Error) -> errors.PostroadError:
        """Return the Postroad error that says what happened and what to do."""
        text = f"PostgreSQL: {_text(error)}"
        if isinstance(error, _NO_TABLES):
            return errors.SchemaMismatch(f"the tables are missing: {_text(error)}", remedy=self._schema_remedy)
        if isinstance(error, pg.InvalidSchemaName):
            return errors.ConfigurationError(
                f"schema: {_text(error)}", field="schema", remedy="Create it, or name another."
            )
        if isinstance(error, pg.ReadOnlySqlTransaction):
            return errors.ConfigurationError(
                "dsn: the server is read-only", field="dsn", remedy="Name the primary server, not a replica."
            )
        if isinstance(error, pg.InsufficientPrivilege):
            return errors.NotPermitted(text, remedy="See `postroad outbox grants`.")
        kinds = {pg.DeadlockDetected: errors.DeadlockDetected, pg.DiskFull: errors.StorageFull}
        return next((ours for theirs, ours in kinds.items() if isinstance(error, theirs)), errors.Unavailable)(text)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[PostgresSession]:
        connection = self._begun(begin)
        committing = False
        try:
            yield PostgresSession(connection)
            committing = True
            connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            if committing:
                raise errors.OutcomeUnknown(f"PostgreSQL went away while it committed: {_text(error)}") from error
            raise self.translate(error) from error
        except psycopg.Error as error:
            raise self.translate(error) from error
        finally:
            self._give_back(connection)

    def _begun(self, begin: str) -> psycopg.Connection[Row]:
        while (connection := self._idle.take()) is not None:
            try:
                connection.execute(begin.encode())
                return connection
            except psycopg.OperationalError:
                # The server was restarted since; the next kept one may be dead too, a new one is not.
                connection.close()
        connection = self.connect()
        try:
            connection.execute(begin.encode())
        except psycopg.Error as error:
            connection.close()
            raise self.translate(error) from error
        return connection

    def _give_back(self, connection: psycopg.Connection[Row]) -> None:
        with suppress(psycopg.Error):
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
            if not connection.closed and self._idle.keep(connection):
                return
        connection.close()


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN]


def shares_servers(database: PostgresDatabase) -> bool:
    """Return whether successive transactions of one connection may run in different processes of the server.

    An idle pooler hands out the same process again and again, so a second connection occupies one meanwhile.
    """
    try:
        with closing(database.connect()) as one, closing(database.connect()) as other:
            before = {_server(one), _server(one)}
            with other.transaction():
                held = _server(other)
                # A pool of one has no process left for the first connection and would make it wait.
                return len(before) > 1 or held in before or _server(one) not in before
    except psycopg.Error as error:
        raise database.translate(error) from error


def _server(connection: psycopg.Connection[Row]) -> int:
    [pid] = connection.execute(b"SELECT pg_backend_pid()").fetchall()[0]
    return int(pid)
