"""The disk under the file: syncs of the log, and room that is kept so that a full disk can be emptied.

A commit writes to the log without waiting for the disk. Whoever promised that it survives a power cut waits here
afterwards, when the turn to write is already another thread's.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from postroad.errors import OutcomeUnknown, PostroadError, StorageDamaged, StorageFull, Unavailable

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


MOST_HEAD_ROOM: Final = 4_194_304
LEAST_HEAD_ROOM: Final = 1_048_576
_DISK_PARTS: Final = 16
_STEP: Final = 1_048_576
_PAGES: Final = "PRAGMA page_count"
_FREE_PAGES: Final = "PRAGMA freelist_count"


class Reserve:
    """A file beside the data that takes up room until the disk is full. All processes share it.

    Its size tells how much room it holds. How much of the head-room a transaction must leave alone is counted in
    quarters: what adds something leaves all four, a dead letter two, a lease one, and what only removes may use all.
    """

    def __init__(self, path: Path, *, keeps_room: bool = True) -> None:
        self._data, self._keeps_room = path, keeps_room
        self._path = Path(f"{path}.reserve")
        self._file: int | None = None
        self._data_path = str(path)
        self._quarter = 0
        self._size = 0
        self._data_size = 0

    def open(self, writer: apsw.Connection | None = None) -> None:
        """Open the file; with a writer, take the room if the disk has any left."""
        if self._file is None and self._keeps_room:
            with suppress(OSError):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._file is None or writer is None:
            return
        disk = os.fstatvfs(self._file)
        # The data of a small disk need most of it themselves.
        share = disk.f_blocks * disk.f_frsize // _DISK_PARTS
        self._quarter = min(MOST_HEAD_ROOM, max(LEAST_HEAD_ROOM, share)) // 4
        self._page_size = int(writer.pragma("page_size"))
        with suppress(StorageFull):
            self.require(writer)

    @property
    def is_whole(self) -> bool:
        """Whether the room is taken, and not given to those who empty a full disk."""
        return self._file is None or os.fstat(self._file).st_size >= 4 * self._quarter

    def require(self, writer: apsw.Connection) -> None:
        """Have all of the room before anything is added, or raise `StorageFull`. The writer holds the write lock."""
        if self._file is None:
            return
        self._size = os.fstat(self._file).st_size
        # Whoever made it larger than the head-room made it large enough for the growth that is still to come.
        if self._size <= 4 * self._quarter:
            self.require_growth(writer, quarters=4, look=True)

    def require_growth(self, writer: apsw.Connection, *, quarters: int, look: bool) -> None:
        """Have room for the pages that only the log and this transaction have, or raise `StorageFull`.

        The sizes of both files are remembered from one `look` to the next.
        """
        if self._file is None:
            return
        if look:
            self._data_size = os.stat(self._data_path).st_size  # noqa: PTH116 - pathlib takes twice the time
            self._size = os.fstat(self._file).st_size
        pages: int = writer.execute(_PAGES).get
        growth = pages * self._page_size - self._data_size
        if growth <= 0 and quarters < 4:
            return
        needed = max(growth, 0) + quarters * self._quarter
        if needed > self._size:
            self._grow(writer, needed, at_least=needed - (quarters - 1) * self._quarter)

    def shrink(self, *, adds: bool) -> None:
        """Give the disk what the next checkpoint needs, and to those who add nothing most of the head-room too."""
        if self._file is not None:
            self._cut(self._quarter * (4 if adds else 1))

    def give_all(self) -> None:
        """Give everything to a checkpoint that found no room."""
        if self._file is not None:
            self._cut(0)

    def close(self) -> None:
        """Let the file go; the room stays taken."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _grow(self, writer: apsw.Connection, needed: int, *, at_least: int) -> None:
        """Make it as large as is needed. Pages of the file that are free count too, but for the least it must have."""
        with self._alone() as file:
            before = os.fstat(file).st_size
            if before < needed:
                disk = os.fstatvfs(file)
                # Somewhat more while the disk has room, so that the next commits need not ask again.
                more = min(_STEP, disk.f_bavail * disk.f_frsize // _DISK_PARTS)
                free: int = writer.execute(_FREE_PAGES).get * self._page_size
                sizes = (needed + more, needed, max(at_least, needed - free))
                before = next((size for size in sizes if size <= before or _allocate(file, size, before)), 0)
            self._size = before
        if not before:
            raise StorageFull(f"{self._data}: the disk is full; nothing was stored")

    def _cut(self, size: int) -> None:
        with self._alone() as file:
            if os.fstat(file).st_size > size:
                os.ftruncate(file, size)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Keep others from changing the size meanwhile: a file made longer by truncation would hold no room."""
        assert self._file is not None
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._file
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _allocate(file: int, size: int, before: int) -> bool:
    """Whether the disk had room to make the file this large; else it is as large as before."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.pwrite(file, bytes(size - before), before)
    except OSError:
        os.ftruncate(file, before)
        return False
    return True
