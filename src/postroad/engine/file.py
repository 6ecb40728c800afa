"""Opening the embedded file: ours or refused, private, in WAL mode, every commit on disk."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import apsw

from postroad.engine.disk import Disk
from postroad.engine.failures import NO_ROOM_OR_DESCRIPTOR, translate
from postroad.engine.forks import inherited
from postroad.engine.schema import META_TABLES, begin_file
from postroad.errors import ConfigurationError, PostroadError

APPLICATION_ID: Final = 0x706F7374  # "post"


BUSY_SECONDS: Final = 5.0
# Enough for the pages above the rows; the rows themselves are in the system's own cache.
WRITER_CACHE_KIB: Final = 3_000
READER_CACHE_KIB: Final = 500
PREPARED_STATEMENTS: Final = 250
FIXED_VERSION: Final = (3, 51, 3)


class Patience:
    """Waits for another process's transaction, which takes less than a millisecond: SQLite's own steps are longer."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        time.sleep(0.0001 if tries < 50 else 0.001)
        return now - self._since < BUSY_SECONDS


def resolved(path: Path) -> Path:
    """The file itself: its absolute path, without links."""
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise _failed(path, "found", error) from error


def make_file(path: Path) -> None:
    """Make the file, empty and private, where there is none.

    It is made under another name and linked into place: closing a descriptor of a file drops all locks that this
    process holds on it, and another thread may open the file with SQLite as soon as it is there.
    """
    if path.exists():
        return
    new = path.with_name(f".postroad-{os.urandom(8).hex()}")
    try:
        _make_empty(new)
        try:
            with suppress(FileExistsError):
                _link(new, path)
        finally:
            new.unlink()
    except OSError as error:
        raise _failed(path, "made", error) from error


def open_file(path: Path, *, cache_kib: int) -> apsw.Connection:
    """Open the file, which exists, and return a connection whose commits are in the log and need only be synced."""
    _refuse_old_library()
    if inherited(path):
        raise ConfigurationError(
            f"{path}: this process was forked in the middle of its parent's transaction on this file",
            remedy="Fork outside of transaction(), or start the child anew (spawn).",
        )
    _refuse_what_is_no_file(path)
    try:
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=PREPARED_STATEMENTS
        )
        # Before anything is read: several threads may open a new file at once.
        connection.set_busy_handler(Patience())
        try:
            _begin(connection, path)
            _configure(connection, path, cache_kib)
        except BaseException:
            connection.close()
            raise
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


def _refuse_what_is_no_file(path: Path) -> None:
    """Refuse what cannot be a database before SQLite opens it: a named pipe would hold it for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _failed(path, "opened", error) from error
    if stat.S_ISDIR(mode):
        raise _refused(path, "is a directory")
    if not stat.S_ISREG(mode):
        raise _refused(path, "is a pipe, a socket or a device, not a file")


def _link(new: Path, path: Path) -> None:
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links. Only a thread that opens the same new file at this moment could lose its locks.
        _make_empty(path)


def _make_empty(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _begin(connection: apsw.Connection, path: Path) -> None:
    """Make a new file Postroad's own, and refuse that of another program. A file that is ours is only read."""
    if is_begun(connection, path):
        return
    with suppress(OSError):
        path.chmod(0o600)
    # So that `compact` can cut off what is free at any time; it counts before the first page is written.
    connection.pragma("auto_vacuum", 2)
    with _together(connection, "BEGIN IMMEDIATE"):
        # Another process may have been faster.
        if not is_begun(connection, path):
            connection.pragma("application_id", APPLICATION_ID)
            begin_file(connection)


def is_begun(connection: apsw.Connection, path: Path) -> bool:
    """Whether the file is ours and complete, seen at one moment: others may be making it just now."""
    with nullcontext() if connection.in_transaction else _together(connection, "BEGIN"):
        is_ours = connection.pragma("application_id") == APPLICATION_ID
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and not is_ours:
        raise _refused(path, "is the database of another program")
    return is_ours and tables >= META_TABLES


@contextmanager
def _together(connection: apsw.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _use_log(connection: apsw.Connection, path: Path) -> None:
    """Turn to a write-ahead log, unless the file has one."""
    patience, tries = Patience(), 0
    while True:
        try:
            if connection.pragma("journal_mode") == "wal" or connection.pragma("journal_mode", "wal") == "wal":
                return
            raise _refused(path, "cannot use a write-ahead log (a network file system?)")
        except apsw.BusyError:
            # Another process does the same now; SQLite asks no busy handler here.
            if not patience(tries):
                raise
            tries += 1


def _configure(connection: apsw.Connection, path: Path, cache_kib: int) -> None:
    # Without it SQLite prepares a join or range anew whenever a parameter changes, which costs more than the query.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    _use_log(connection, path)
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


def _failed(path: Path, what: str, error: OSError) -> PostroadError:
    if error.errno in NO_ROOM_OR_DESCRIPTOR:
        return translate(error, path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return _refused(path, f"cannot be {what}: there is no directory {path.parent}", "Make the directory first.")
    return _refused(path, f"cannot be {what}: {error.strerror}")


def _refused(path: Path, why: str, remedy: str = "") -> ConfigurationError:
    remedy = remedy or "Name a file that Postroad made, or one that does not exist yet."
    return ConfigurationError(f"{path}: {why}", field="url", remedy=remedy)


def open_pair(path: Path, disk: Disk) -> tuple[apsw.Connection, apsw.Connection]:
    """Open the file for a writer and a reader, and its log for whoever brings it to the disk."""
    with ExitStack() as opened:
        writer = opened.enter_context(closing(open_file(path, cache_kib=WRITER_CACHE_KIB)))
        reader = opened.enter_context(closing(open_file(path, cache_kib=READER_CACHE_KIB)))
        try:
            disk.open()
        except OSError as error:
            raise translate(error, path) from error
        opened.pop_all()
    return writer, reader


def close_pair(writer: apsw.Connection, reader: apsw.Connection, disk: Disk) -> None:
    """Close both, the log first, so that everything is on the disk."""
    disk.close()
    for connection in (reader, writer):
        if disk.displaced:
            # SQLite would copy a log that nobody else sees into the file, and remove the log at the path.
            with suppress(apsw.Error):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
