"""The disk under the log.

A commit writes to the log without waiting for the disk. Whoever promised that it survives a power cut waits here
afterwards, when the turn to write is already another thread's.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from postroad.errors import OutcomeUnknown, PostroadError, StorageDamaged, Unavailable

# A directory that changes twice within one tick of the clock, or of its file system, shows the same time for both.
_TICK_NS = 20_000_000
_LONGEST_TICK_NS = 3_000_000_000
_SECOND_NS = 1_000_000_000


class Disk:
    """Brings the log of one file to the disk; its owner sees to it that nobody syncs while it is opened or closed."""

    def __init__(self, path: Path, *, syncs: bool = True) -> None:
        self._path, self._syncs = path, syncs
        self._log: int | None = None
        self._refused: str | None = None
        self._displaced: str | None = None
        self._file: tuple[int, int] | None = None
        self._places: tuple[tuple[str, tuple[int, int] | None], ...] = ()
        self._directory = str(path.parent)
        self._unchanged: tuple[int, int, int] | None = None
        """The directory as it was when the files were last found in place; None when they must be looked at."""

    def open(self) -> None:
        """Take the log of the file, which SQLite has open."""
        if not self._syncs:
            return
        self.expect_same_file()
        # SQLite locks the file and its shared memory, never the log: closing this descriptor drops no lock.
        self._log = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        self._file = _identity(str(self._path))
        memory = f"{self._path}-shm"
        log = os.fstat(self._log)
        self._places = (
            (f"{self._path}-wal", (log.st_dev, log.st_ino)),
            (str(self._path), self._file),
            (memory, _identity(memory)),
        )
        self._unchanged = None

    def expect_same_file(self) -> None:
        """Raise `StorageDamaged` when another file stands at the path than the last time it was open."""
        if self._file is not None:
            self._places, self._unchanged = ((str(self._path), self._file),), None
            self.expect_in_place()

    def expect_in_place(self) -> None:
        """Raise `StorageDamaged` when file, log or shared memory are no longer those at the path, now and ever after.

        SQLite itself goes on writing into a log that was removed, and nobody would ever find what is in it. Nothing is
        removed or replaced without a change of the directory, so the time of that change is enough. Looking at the log
        itself would make Linux store a new time with each write, and a commit would take half as long again.
        """
        if not self._places:
            return
        if self._displaced is None:
            directory = _directory_state(self._directory)
            if directory is not None and directory == self._unchanged:
                return
            for place, identity in self._places:
                if _identity(place) != identity:
                    self._displaced = place
                    break
            else:
                self._unchanged = directory if directory is not None and _is_settled(directory[2]) else None
                return
        raise StorageDamaged(
            f"{self._displaced}: was removed or replaced while this program had it open",
            remedy="Stop every program that uses the file, put it back with its log, and repeat what failed.",
        )

    @property
    def displaced(self) -> bool:
        """Whether the files were found to be no longer those at the path."""
        return self._displaced is not None

    def expect_to_keep(self) -> None:
        """Raise `Unavailable` before anything is written that must survive, once a sync has failed."""
        if self._refused is not None:
            raise Unavailable(
                f"{self._path}: nothing was stored: the disk failed to keep the log before: {self._refused}",
                remedy="Repair the disk, start the program again, and repeat what failed.",
            )

    def sync(self) -> None:
        """Return once everything that was committed before this call is on the disk, or raise `OutcomeUnknown`."""
        if self._log is not None and self._refused is None:
            try:
                _to_disk(self._log)
            except OSError as error:
                # The system says it once and may have dropped what it could not write: a second try proves nothing.
                self._refused = str(error)
        self.expect_in_place()
        if self._refused is not None:
            raise OutcomeUnknown(
                f"{self._path}: the disk did not keep the log: {self._refused}",
                remedy="Repair the disk, start the program again, and repeat what failed under the same ids.",
            )

    def close(self) -> None:
        """Sync once more and let the log go; what was committed before needs no more waiting."""
        # Whoever still waits is told when it asks.
        with suppress(PostroadError):
            self.sync()
        log, self._log = self._log, None
        self._places, self._unchanged = (), None
        if log is not None:
            os.close(log)


def _is_settled(changed_ns: int) -> bool:
    """Whether a further change would show another time; some file systems keep whole or even seconds only."""
    tick = _TICK_NS if changed_ns % _SECOND_NS else _LONGEST_TICK_NS
    return time.time_ns() - changed_ns > tick


def _directory_state(directory: str) -> tuple[int, int, int] | None:
    """Return device, inode and time of the last change of a directory; None when it cannot be looked at."""
    try:
        found = os.stat(directory)  # noqa: PTH116 - once for each sync: a Path would cost as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _identity(place: str) -> tuple[int, int] | None:
    """Device and inode of what stands at the place; None when nothing does."""
    try:
        found = os.stat(place)  # noqa: PTH116 - a Path would cost as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _to_disk(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync leaves it in the drive's own memory there.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)
