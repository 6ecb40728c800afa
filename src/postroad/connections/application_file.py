"""A SQLite file of the user's own, opened with the interpreter's sqlite3 as the application does.

Two SQLite libraries must never open one file in one process, so this never uses the embedded engine's.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from postroad.connections.callers import Row
from postroad.engine import APPLICATION_ID, is_open
from postroad.errors import ConfigurationError, PostroadError, SchemaMismatch, StorageDamaged, StorageFull, Unavailable

_BUSY_SECONDS: Final = 5.0
_KEPT: Final = 4
_BEGIN: Final = "BEGIN IMMEDIATE"
_BEGIN_READING: Final = "BEGIN"


class FileSession:
    """One transaction on the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return self.connection.execute(statement, values).fetchall()

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        return self.connection.execute(statement, values).rowcount

    def script(self, statements: str) -> None:
        for statement in _each(statements):
            self.connection.execute(statement)


class ApplicationFile:
    """Connections to one file, opened when they are needed; a few are kept open between transactions."""

    def __init__(self, path: str | Path, *, schema_remedy: str) -> None:
        self.path = Path(path)
        self._schema_remedy = schema_remedy
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def transaction(self) -> Iterator[FileSession]:
        # SQLite lets waiting writers sleep and look again, so that a busy thread starves the others of its process.
        ours = self._writing.acquire(timeout=_BUSY_SECONDS)
        try:
            with self._transaction(_BEGIN) as session:
                yield session
        finally:
            if ours:
                self._writing.release()

    @contextmanager
    def reading(self) -> Iterator[FileSession]:
        with self._transaction(_BEGIN_READING) as session:
            yield session

    def create(self) -> None:
        """Make the file where there is none."""
        self._refuse_the_engines_own(is_open(self.path.resolve()))
        try:
            self.path.touch()
        except OSError as error:
            raise self.translate(error) from error

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)

    def translate(self, error: sqlite3.Error | OSError) -> PostroadError:
        """The Postroad error that says what happened to the file and what to do."""
        text = str(error)
        if "no such table" in text or "no such column" in text or "has no column" in text:
            return SchemaMismatch(f"{self.path}: the tables are missing: {text}", remedy=self._schema_remedy)
        if "unable to open" in text and not self.path.exists():
            return SchemaMismatch(
                f"{self.path}: there is no such file, so the tables are missing",
                remedy=self._schema_remedy or "Name a file that exists.",
            )
        if "unable to open" in text or isinstance(error, OSError):
            return ConfigurationError(
                f"{self.path}: cannot be opened ({text})", field="path", remedy="Name a file that exists."
            )
        if "not a database" in text:
            return ConfigurationError(f"{self.path}: is not a SQLite file", field="path", remedy="Name another file.")
        if "readonly" in text:
            return ConfigurationError(f"{self.path}: is read-only", field="path", remedy="Make it writable.")
        if "malformed" in text:
            return StorageDamaged(f"{self.path}: the file is damaged: {text}")
        if "disk is full" in text:
            return StorageFull(f"{self.path}: the disk is full; nothing was stored")
        return Unavailable(f"{self.path}: {text}")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[FileSession]:
        connection = None
        try:
            connection = self._kept() or self._opened()
            connection.execute(begin)
            yield FileSession(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.translate(error) from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def _opened(self) -> sqlite3.Connection:
        # Only `create` makes a file: a mistyped path must not leave an empty one behind.
        address = f"file:{quote(str(self.path.absolute()))}?mode=rw"
        self._refuse_the_engines_own(is_open(self.path.resolve()))
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._refuse_the_engines_own(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_the_engines_own(self, is_its_own: bool) -> None:
        if is_its_own:
            raise ConfigurationError(
                f"{self.path}: is the file of the embedded engine",
                field="path",
                remedy="Name the application's own database: two SQLite libraries must not share a file.",
            )

    def _kept(self) -> sqlite3.Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            with self._lock:
                if len(self._idle) < _KEPT:
                    self._idle.append(connection)
                    return
        connection.close()


def _each(statements: str) -> Iterator[str]:
    """The statements one by one: sqlite3's own executescript would commit first."""
    pending = ""
    for line in statements.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()
