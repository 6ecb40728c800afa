"""A file that this process may only read: its mode, its directory or its file system allows no more.

While its log holds anything, SQLite reads both, with the shared memory that is there, and makes nothing. Without a log
the file is complete, and SQLite is told that nobody changes it (`immutable`). Another process may change it all the
same; then the read is repeated."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import apsw

from postroad.engine.failures import translate
from postroad.engine.file import READER_CACHE_KIB, BusyHandler, is_begun
from postroad.errors import ConfigurationError, NotPermitted, Unavailable

T = TypeVar("T")

_MOST_TRIES: Final = 20
_UNREADABLE = apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError


def may_write(path: Path) -> bool:
    """Return whether this process may write to the file and to its log, or make one."""
    if not os.access(path, os.W_OK):
        return False
    return os.access(path.parent, os.W_OK) or all(os.access(f"{path}{end}", os.W_OK) for end in ("-wal", "-shm"))


class ReadOnlyFile:
    """The committed content of the file. One thread at a time reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None
        self._seen: tuple[int, ...] | None = None
        if not os.access(path, os.R_OK):
            raise ConfigurationError(
                f"{path}: this user may not read it", field="url", remedy="Run as its owner, or change its mode."
            )
        if not self.read(lambda connection: is_begun(connection, path)):
            raise ConfigurationError(
                f"{path}: is empty, and this user may not write to it or to its directory",
                field="url",
                remedy="Give this user the permission, or open it once as its owner.",
            )

    def refusal(self) -> NotPermitted:
        """Return the error for an attempt to change something."""
        return NotPermitted(
            f"{self._path}: can only be read by this user; nothing was changed",
            remedy="Run as the owner of the file, or let this user write to the file and its directory.",
        )

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a short read of what is committed; it may run more than once."""
        for _ in range(_MOST_TRIES):
            now = self._look()
            connection = self._opened(now)
            try:
                found = work(connection)
            except apsw.Error as error:
                # A file that changes under a reader looks damaged.
                if self._look() == now:
                    raise self._meaning(error) from error
            else:
                if self._has_log(now) or self._look() == now:
                    return found
        raise Unavailable(f"{self._path}: was changed each time it was read", remedy="Try again.")

    def journal_mode(self) -> str:
        """Return the journal mode of the file, whether or not there is a log now."""
        # Bytes 18 and 19 of the file's header; the pragma does not know it for an immutable file.
        is_logged = self.read(lambda connection: connection.read("main", 0, 18, 2)[1] == b"\2\2")
        return "wal" if is_logged else self.read(lambda connection: str(connection.pragma("journal_mode")))

    def close(self) -> None:
        """Close the file; closing twice changes nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self, now: tuple[int, ...]) -> apsw.Connection:
        # A connection that reads the log sees every change by itself.
        if self._connection is None or (self._seen != now and not self._has_log(self._seen)):
            self.close()
            try:
                self._connection, self._seen = self._open(has_log=self._has_log(now)), now
            except apsw.Error as error:
                raise self._meaning(error) from error
        return self._connection

    def _open(self, *, has_log: bool) -> apsw.Connection:
        options = "mode=ro&readonly_shm=1" if has_log else "immutable=1"
        connection = apsw.Connection(
            f"file:{quote(os.fsencode(self._path))}?{options}",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
        connection.set_busy_handler(BusyHandler())
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.pragma("temp_store", "memory")
        connection.pragma("cache_size", -READER_CACHE_KIB)
        return connection

    def _look(self) -> tuple[int, ...]:
        """Return what tells one state of the file from another: the file, and the sizes of its log and journal."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise translate(error, self._path) from error
        ends = (_size(f"{self._path}{end}") for end in ("-wal", "-journal"))
        return (*ends, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    @staticmethod
    def _has_log(seen: tuple[int, ...] | None) -> bool:
        return seen is not None and any(seen[:2])

    def _meaning(self, error: apsw.Error) -> Exception:
        if isinstance(error, _UNREADABLE) and self._has_log(self._look()):
            return ConfigurationError(
                f"{self._path}: its log holds newer messages and cannot be read here: {error}",
                field="url",
                remedy="Look at it as the owner of the file, or copy the file and its log to a directory of your own.",
            )
        return translate(error, self._path)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
    except OSError:
        # It exists, whatever its size.
        return 1
