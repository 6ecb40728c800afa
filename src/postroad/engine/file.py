"""Opening the embedded file: Postroad's own or refused, private, in WAL mode, and closed while the process forks.

SQLite keeps its locks in a table of the process. A child that inherits it believes that it holds locks which it does
not hold, even through connections of its own. So every engine closes its file before a fork and opens it again in the
parent. Only a thread that forks in the middle of its own transaction cannot, nor one that Ctrl-C interrupts meanwhile;
its child must not open that file at all.
"""

from __future__ import annotations

import ctypes
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from postroad.engine.disk import Disk
from postroad.engine.failures import NO_ROOM_OR_DESCRIPTOR, translate
from postroad.errors import ConfigurationError, PostroadError, SchemaMismatch, StorageDamaged

if TYPE_CHECKING:
    from postroad.engine.engine import Engine
    from postroad.engine.transaction import Transaction

APPLICATION_ID: Final = 0x706F7374  # "post"
BUSY_SECONDS: Final = 5.0
# Enough for the pages above the rows; the rows themselves are in the system's own cache.
WRITER_CACHE_KIB: Final = 3_000
READER_CACHE_KIB: Final = 500
PREPARED_STATEMENTS: Final = 250
FIXED_VERSION: Final = (3, 51, 3)
_SHORTEST_SLEEP: Final = 0.000001
"""The system makes it some sixty times as long."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS part (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, boot TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS file (salt INTEGER NOT NULL) STRICT;
"""
_TABLE_NAMES: Final = frozenset(("part", "file"))
_SALT: Final = "SELECT salt FROM file"
_SET_SALT: Final = "INSERT INTO file (salt) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM file)"
_PART: Final = "SELECT version, boot FROM part WHERE name = ?"
_SET_PART: Final = """
INSERT INTO part (name, version, boot) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version, boot = excluded.boot
"""

_open: weakref.WeakSet[Engine] = weakref.WeakSet()
_closed_for_fork: list[Engine] = []
_inherited: set[Path] = set()


class BusyHandler:
    """Waits for another process's transaction, which takes less than a millisecond: SQLite's own steps are longer."""

    def __init__(self) -> None:
        self._since = 0.0
        self._brief_until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        time.sleep(_SHORTEST_SLEEP if tries < 50 else 0.001)
        if self._since < self._brief_until:
            return now < self._brief_until
        return now - self._since < BUSY_SECONDS

    @contextmanager
    def briefly(self, seconds: float) -> Iterator[None]:
        """Wait no longer than this in the block. Should Ctrl-C skip its end, the time ends by itself."""
        self._brief_until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._brief_until = 0.0


def resolved(path: Path) -> Path:
    """Return the absolute path of the file, without links."""
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise _failed(path, "found", error) from error


def make_file(path: Path) -> None:
    """Make an empty, private file if there is none.

    It is made under another name and linked into place: closing a descriptor of a file drops all locks that this
    process holds on it, and another thread may open the file with SQLite as soon as it is there.
    """
    if path.exists():
        return
    new = path.with_name(f".postroad-{os.urandom(8).hex()}")
    try:
        _make_empty(new)
        with suppress(FileExistsError):
            try:
                os.link(new, path)
            except FileExistsError:
                raise
            except OSError:
                # A file system without links. Only a thread that opens the same new file now could lose its locks.
                _make_empty(path)
            finally:
                new.unlink()
    except OSError as error:
        raise _failed(path, "made", error) from error


def _make_empty(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def open_file(path: Path, *, cache_kib: int) -> apsw.Connection:
    """Open the file, which exists, and return a connection whose commits are in the log and need only be synced."""
    # Older libraries can corrupt a WAL file when two processes checkpoint in a row.
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < FIXED_VERSION:
        raise ConfigurationError(
            f"the SQLite library {apsw.sqlite_lib_version()} has a known WAL bug", remedy="pip install -U apsw"
        )
    if path in _inherited:
        raise ConfigurationError(
            f"{path}: this process was forked in the middle of its parent's transaction on this file",
            remedy="Fork outside of transaction(), or start the child anew (spawn).",
        )
    _refuse_other_than_file(path)
    try:
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=PREPARED_STATEMENTS
        )
        # Before anything is read: several threads may open a new file at once.
        connection.set_busy_handler(BusyHandler())
        try:
            _begin(connection, path)
            _configure(connection, path, cache_kib)
        except BaseException:
            connection.close()
            raise
    except apsw.Error as error:
        raise translate(error, path) from error
    return connection


def _refuse_other_than_file(path: Path) -> None:
    """Raise `ConfigurationError` for anything but a file: SQLite would wait for ever for a named pipe."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _failed(path, "opened", error) from error
    if stat.S_ISDIR(mode):
        raise _refused(path, "is a directory")
    if not stat.S_ISREG(mode):
        raise _refused(path, "is a pipe, a socket or a device, not a file")


def _begin(connection: apsw.Connection, path: Path) -> None:
    """Make a new file Postroad's own, and refuse that of another program. A file that is ours is only read."""
    if is_begun(connection, path):
        return
    with suppress(OSError):
        path.chmod(0o600)
    # So that `compact` can cut off free pages at any time; it takes effect only before the first page is written.
    connection.pragma("auto_vacuum", 2)
    with _together(connection, "BEGIN IMMEDIATE"):
        # Another process may have been faster.
        if not is_begun(connection, path):
            connection.pragma("application_id", APPLICATION_ID)
            connection.execute(_TABLES)
            connection.execute(_SET_SALT, (int.from_bytes(os.urandom(8)) >> 4,))


def is_begun(connection: apsw.Connection, path: Path) -> bool:
    """Return whether the file is Postroad's and complete, seen at one moment: others may be making it just now."""
    with nullcontext() if connection.in_transaction else _together(connection, "BEGIN"):
        is_ours = connection.pragma("application_id") == APPLICATION_ID
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and not is_ours:
        raise _refused(path, "is the database of another program")
    return is_ours and tables >= _TABLE_NAMES


@contextmanager
def _together(connection: apsw.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


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
        raise _refused(path, "does not accept synchronous=NORMAL")


def _use_log(connection: apsw.Connection, path: Path) -> None:
    """Switch the file to a write-ahead log, unless it has one."""
    wait, tries = BusyHandler(), 0
    while True:
        try:
            if connection.pragma("journal_mode") == "wal" or connection.pragma("journal_mode", "wal") == "wal":
                return
            raise _refused(path, "cannot use a write-ahead log (a network file system?)")
        except apsw.BusyError:
            # Another process does the same now; SQLite does not call the busy handler here.
            if not wait(tries):
                raise
            tries += 1


def _failed(path: Path, verb: str, error: OSError) -> PostroadError:
    if error.errno in NO_ROOM_OR_DESCRIPTOR:
        return translate(error, path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return _refused(path, f"cannot be {verb}: there is no directory {path.parent}", "Make the directory first.")
    return _refused(path, f"cannot be {verb}: {error.strerror}")


def _refused(path: Path, why: str, remedy: str = "") -> ConfigurationError:
    remedy = remedy or "Name a file that Postroad made, or one that does not exist yet."
    return ConfigurationError(f"{path}: {why}", field="url", remedy=remedy)


def open_pair(path: Path, disk: Disk) -> tuple[apsw.Connection, BusyHandler, apsw.Connection]:
    """Open the file for a writer, with what waits for its locks, and a reader; and its log for syncs."""
    with ExitStack() as opened:
        writer = opened.enter_context(closing(open_file(path, cache_kib=WRITER_CACHE_KIB)))
        busy = BusyHandler()
        writer.set_busy_handler(busy)
        reader = opened.enter_context(closing(open_file(path, cache_kib=READER_CACHE_KIB)))
        try:
            disk.open()
        except OSError as error:
            raise translate(error, path) from error
        opened.pop_all()
    return writer, busy, reader


def close_pair(writer: apsw.Connection, reader: apsw.Connection, disk: Disk) -> None:
    """Close both, the log first, so that everything is on the disk."""
    disk.close()
    for connection in (reader, writer):
        if disk.displaced:
            # SQLite would copy a log that nobody else sees into the file, and remove the log at the path.
            with suppress(apsw.Error):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one part. Step n brings a file from version n to n + 1; steps are only ever added."""

    part: str
    steps: tuple[str, ...]

    def stored(self, connection: apsw.Connection, path: Path) -> tuple[int, str]:
        """Return the version of the stored tables, 0 if there are none, and the machine's boot id they belong to."""
        version, boot = connection.execute(_PART, (self.part,)).fetchone() or (0, "")
        newest = len(self.steps)
        if version > newest:
            text = f"{path}: its {self.part} are of version {version}; this Postroad knows up to {newest}"
            raise SchemaMismatch(text)
        return version, boot

    def migrate(
        self, tx: Transaction, boot_id: str, path: Path, after_reboot: Callable[[Transaction], None] | None
    ) -> None:
        """Bring the tables to the newest version; call `after_reboot` if the machine was booted since the last time."""
        connection = tx.connection
        version, boot = self.stored(connection, path)
        newest = len(self.steps)
        for step in self.steps[version:]:
            connection.execute(step)
        if version != newest or boot != boot_id:
            connection.execute(_SET_PART, (self.part, newest, boot_id))
        if version > 0 and boot != boot_id and after_reboot is not None:
            after_reboot(tx)


def read_salt(connection: apsw.Connection) -> int:
    """Return the file's 60 random bits, which no other file has."""
    salt = connection.execute(_SALT).get
    if salt is None:
        raise StorageDamaged(
            f"{connection.filename}: the number that distinguishes this file from others is missing",
            remedy="Restore the file from a backup.",
        )
    return int(salt)


def close_at_forks(engine: Engine) -> None:
    """Close the engine's file at every fork from now on."""
    _open.add(engine)


def is_open(path: Path) -> bool:
    """Return whether the embedded engine has this file open in this process."""
    return any(_is_same(engine.path, path) for engine in list(_open))


def in_transaction() -> bool:
    """Return whether this thread is inside a `transaction` block of any embedded file."""
    return any(engine.in_transaction for engine in list(_open))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


def _before_fork() -> None:
    _closed_for_fork[:] = list(_open)
    for engine in _closed_for_fork:
        engine.before_fork()


def _after_fork_in_parent() -> None:
    while _closed_for_fork:
        _closed_for_fork.pop().after_fork_in_parent()


def _after_fork_in_child() -> None:
    while _closed_for_fork:
        engine = _closed_for_fork.pop()
        if connections := engine.after_fork_in_child():
            _inherited.add(engine.path)
        for connection in connections:
            # Closing it would drop the parent's locks: it must outlive this process.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
