"""SQLite files as they lie there: which library reads them, and how they keep their log.

Each library only looks at its own files: two SQLite libraries must never open one file in one process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

from postroad.connections.application_file import ApplicationFile
from postroad.engine import FIXED_VERSION, ReadOnlyFile, may_write, translate


@dataclass(frozen=True, slots=True)
class FileState:
    """The version of the library that reads the file, the file's journal mode, and how much of it is used."""

    library: str
    journal_mode: str
    size: int = 0
    """Bytes of all pages."""
    free: int = 0
    """Bytes of the pages that hold nothing."""

    @property
    def sound(self) -> bool:
        """Whether the library is free of the bug that damages write-ahead logs."""
        return tuple(int(part) for part in self.library.split(".")) >= FIXED_VERSION


def engine_file_state(path: Path) -> FileState:
    """The embedded engine's own file, read by the engine's library."""
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
            return FileState(apsw.sqlite_lib_version(), mode, pages * page_size, free * page_size)
    except apsw.Error as error:
        raise translate(error, path) from error


def application_file_state(path: Path) -> FileState:
    """A file of the application's, read by the interpreter's library."""
    file = ApplicationFile(path, schema_remedy="")
    try:
        with file.reading() as session:
            [(mode,)] = session.rows("PRAGMA journal_mode")
    finally:
        file.close()
    return FileState(sqlite3.sqlite_version, str(mode))
