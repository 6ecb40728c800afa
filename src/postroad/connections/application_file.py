"""A SQLite file of the user's own, opened with the interpreter's sqlite3 as the application does, and states of files.

Two SQLite libraries must never open one file in one process, so each of them only reads its own files."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from postroad.connections.database import IdleConnections, Row
from postroad.engine import APPLICATION_ID, FIXED_VERSION, ReadOnlyFile, is_open, may_write, translate
from postroad.errors import ConfigurationError, PostroadError, SchemaMismatch, StorageDamaged, StorageFull, Unavailable

_BUSY_SECONDS: Final = 5.0
_READABLE: Final = partial(str, encoding="utf-8", errors="backslashreplace")


class FileSession:
    """One transaction on the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return self.connection.execute(statement, values).fetchall()

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        return self.connection.execute(statement, values).rowcount

    def script(self, statements: str) -> None:
        # One by one: sqlite3's own executescript would commit first.
        pending = ""
        for line in statements.splitlines(keepends=True):
            pending += line
            if sqlite3.complete_statement(pending):
                self.connection.execute(pending)
                pending = ""


class ApplicationFile:
    """Connections to one file, opened when they are needed; a few are kept open between transactions."""

    def __init__(self, path: str | Path, *, schema_remedy: str) -> None:
        self.path = Path(path)
        self._schema_remedy = schema_remedy
        self._writing = threading.Lock()
        self._idle: IdleConnections[sqlite3.Connection] = IdleConnections()

    @contextmanager
    def transaction(self) -> Iterator[FileSession]:
        # SQLite's waiting writers sleep and try again, so a busy thread would starve the others of its process.
        ours = self._writing.acquire(timeout=_BUSY_SECONDS)
        try:
            with self._transaction("BEGIN IMMEDIATE") as session:
                yield session
        finally:
            if ours:
                self._writing.release()

    def reading(self) -> AbstractContextManager[FileSession]:
        return self._transaction("BEGIN")

    def create(self) -> None:
        """Make the file if there is none."""
        self._refuse_the_engines_own(is_open(self.path.resolve()))
        try:
            self.path.touch()
        except OSError as error:
            raise self.translate(error) from error

    def close(self) -> None:
        self._idle.close()

    def translate(self, error: sqlite3.Error | OSError) -> PostroadError:
        """Return the Postroad error that says what happened to the file and what to do."""
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
            connection = self._idle.take() or self._opened()
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
        # One text that is not UTF-8 must not hide all the rows that are read with it.
        connection.text_factory = _READABLE
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

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if self._idle.keep(connection):
                return
        connection.close()


_LATEST: Final = "SELECT max(last_us) FROM tally"


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a SQLite file.

    Attributes:
        library: The version of the SQLite library that reads it.
        journal_mode: The journal mode.
        size: The bytes of all pages.
        free: The bytes of the pages that hold nothing.
        latest: The latest time that the queues of the embedded engine have stored.
    """

    library: str
    journal_mode: str
    size: int = 0
    free: int = 0
    latest: datetime | None = None

    @property
    def sound(self) -> bool:
        """Whether the library is free of the bug that damages write-ahead logs."""
        return tuple(int(part) for part in self.library.split(".")) >= FIXED_VERSION


def engine_file_state(path: Path) -> FileState:
    """Return the state of the embedded engine's own file, read by the engine's library."""
    if not may_write(path):
        with closing(ReadOnlyFile(path)) as looked_at:
            return FileState(apsw.sqlite_lib_version(), looked_at.journal_mode())
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        with closing(connection):
            page_size, pages, free = (
                int(connection.pragma(name)) for name in ("page_size", "page_count", "freelist_count")
            )
            mode = str(connection.pragma("journal_mode"))
            latest_us = connection.execute(_LATEST).get
            latest = datetime.fromtimestamp(latest_us / 1_000_000, UTC) if latest_us else None
            return FileState(apsw.sqlite_lib_version(), mode, pages * page_size, free * page_size, latest)
    except apsw.Error as error:
        raise translate(error, path) from error


def application_file_state(path: Path) -> FileState:
    """Return the state of a file of the application, read by the interpreter's library."""
    with closing(ApplicationFile(path, schema_remedy="")) as file, file.reading() as session:
        [(mode,)] = session.rows("PRAGMA journal_mode")
    return FileState(sqlite3.sqlite_version, str(mode))
