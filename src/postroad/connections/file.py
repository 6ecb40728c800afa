"""Opening the embedded file: ours or refused, private, in WAL mode, every commit on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import apsw

from postroad.connections.failures import translate
from postroad.connections.identity import APPLICATION_ID
from postroad.connections.inheritance import inherited
from postroad.errors import ConfigurationError

BUSY_SECONDS: Final = 5.0
PREPARED_STATEMENTS: Final = 250
_HEADER = b"SQLite format 3\x00"
FIXED_VERSION: Final = (3, 51, 3)


class _Patience:
    """Waits for another process's transaction, which takes less than a millisecond: SQLite's own steps are longer."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        time.sleep(0.0001 if tries < 50 else 0.001)
        return now - self._since < BUSY_SECONDS


def open_file(path: Path, *, cache_kib: int) -> apsw.Connection:
    """Open or make the file and return a connection whose commits survive a power cut."""
    _refuse_old_library()
    if inherited(path.resolve()):
        raise ConfigurationError(
            f"{path}: this process was forked in the middle of its parent's transaction on this file",
            remedy="Fork outside of transaction(), or start the child anew (spawn).",
        )
    _make_private(path)
    try:
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=PREPARED_STATEMENTS
        )
        # Before anything is read: several threads may open a new file at once.
        connection.set_busy_handler(_Patience())
        _refuse_foreign(connection, path)
        _configure(connection, path, cache_kib)
    except apsw.Error as error:
        raise translate(error, path) from error
    return connection


def _refuse_old_library() -> None:
    # Older libraries can corrupt a WAL file when two processes checkpoint in a row.
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < FIXED_VERSION:
        raise ConfigurationError(
            f"the SQLite library {apsw.sqlite_lib_version()} has a known WAL bug", remedy="pip install -U apsw"
        )


def _make_private(path: Path) -> None:
    try:
        if path.is_dir():
            raise _refused(path, "is a directory")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(path, f"cannot be opened: {error.strerror}") from error
    try:
        header = os.read(descriptor, len(_HEADER))
    finally:
        os.close(descriptor)
    if header and header != _HEADER:
        raise _refused(path, "is not a Postroad file")


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    if connection.pragma("application_id") == APPLICATION_ID:
        return
    if connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise _refused(path, "is the database of another program")


def _configure(connection: apsw.Connection, path: Path, cache_kib: int) -> None:
    # Without it SQLite prepares a join or range anew whenever a parameter changes, which costs more than the query.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if connection.pragma("page_count") == 0:
        # So that `compact` can cut off what is free at any time.
        connection.pragma("auto_vacuum", 2)
    if connection.pragma("journal_mode", "wal") != "wal":
        raise _refused(path, "cannot use a write-ahead log (a network file system?)")
    # The log is synced after the commit (see disk.py), and by SQLite itself before and after a checkpoint.
    connection.pragma("synchronous", "normal")
    connection.pragma("fullfsync", 1)
    connection.pragma("checkpoint_fullfsync", 1)
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", -1)
    connection.pragma("temp_store", "memory")
    connection.pragma("cache_size", -cache_kib)
    if connection.pragma("synchronous") != 1:
        raise _refused(path, "does not take synchronous=NORMAL")
    if connection.pragma("application_id") != APPLICATION_ID:
        connection.pragma("application_id", APPLICATION_ID)


def _refused(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: {why}", field="url", remedy="Name a file that Postroad made, or one that does not exist yet."
    )
