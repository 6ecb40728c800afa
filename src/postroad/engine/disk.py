"""The disk under the file: syncs of the log, room that is kept so that a full disk can be emptied, and checkpoints.

A commit writes to the log without waiting for the disk. A thread whose work must survive a power cut waits here
afterwards, when another thread may already write.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from postroad import failpoints
from postroad.errors import OutcomeUnknown, PostroadError, StorageDamaged, StorageFull, Unavailable

if TYPE_CHECKING:
    from postroad.engine.file import BusyHandler

MOST_HEAD_ROOM: Final = 4_194_304
LEAST_HEAD_ROOM: Final = 1_048_576
CHECKPOINT_PAGES: Final = 4_000
CHECKPOINT_COMMITS: Final = 250
"""SQLite looks a page up in its log by walking over all copies of it, and each commit adds a copy of the same few."""
RESTART_SECONDS: Final = 0.002
"""How long a restart of the log may wait for those who read it; nobody can write meanwhile."""
SHORT_PAGES: Final = 32
"""Half of a quarter of the smallest head-room: neither a log nor a growth of so many pages uses it up."""
# A directory that changes twice within one tick of the clock, or of its file system, shows the same time for both.
_TICK_NS: Final = 20_000_000
_LONGEST_TICK_NS: Final = 3_000_000_000
_SECOND_NS: Final = 1_000_000_000
_DISK_PARTS: Final = 16
_STEP: Final = 1_048_576
_LEAST_ROOM: Final = 262_144
"""The room that a disk must have left to count as usable: that of one large message."""
_PAGES: Final = "PRAGMA page_count"
_FREE_PAGES: Final = "PRAGMA freelist_count"


class Disk:
    """Syncs the log of one file. Its owner ensures that nobody syncs while it is opened or closed."""

    def __init__(self, path: Path, *, syncs: bool = True) -> None:
        self._path, self._syncs = path, syncs
        self._log: int | None = None
        self._sync_error: str | None = None
        self.displaced: str | None = None
        """Which of the files was found to be removed or replaced."""
        self._file: tuple[int, int] | None = None
        self._places: tuple[tuple[str, tuple[int, int] | None], ...] = ()
        self._directory = str(path.parent)
        self._unchanged: tuple[int, int, int] | None = None
        """The state of the directory when the files were last found in place; None when they must be checked."""

    def open(self) -> None:
        """Open the log of the file, which SQLite has open."""
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
        """Raise `StorageDamaged` if the path now leads to another file than when it was last open."""
        if self._file is not None:
            self._places, self._unchanged = ((str(self._path), self._file),), None
            self.expect_in_place()

    def expect_in_place(self) -> None:
        """Raise `StorageDamaged` if file, log or shared memory were removed or replaced, now and ever after.

        SQLite itself goes on writing into a log that was removed, where nobody would ever find it. Nothing is
        removed or replaced without a change of the directory, so the time of that change is enough. Looking at the log
        itself would make Linux store a new time with each write, and a commit would take half as long again.
        """
        if not self._places:
            return
        if self.displaced is None:
            directory = _state(self._directory)
            if directory is not None and directory == self._unchanged:
                return
            for place, identity in self._places:
                if _identity(place) != identity:
                    self.displaced = place
                    break
            else:
                self._unchanged = directory if directory is not None and _is_settled(directory[2]) else None
                return
        raise StorageDamaged(
            f"{self.displaced}: was removed or replaced while this program had it open",
            remedy="Stop every program that uses the file, put it back with its log, and repeat what failed.",
        )

    def expect_to_keep(self) -> None:
        """Raise `Unavailable` if a sync has failed before, so that nothing is written that must survive."""
        if self._sync_error is not None:
            raise Unavailable(
                f"{self._path}: nothing was stored: the disk failed to keep the log before: {self._sync_error}",
                remedy="Repair the disk, start the program again, and repeat what failed.",
            )

    def sync(self) -> None:
        """Return once everything that was committed before this call is on the disk, or raise `OutcomeUnknown`."""
        if self._log is not None and self._sync_error is None:
            try:
                to_disk(self._log)
            except OSError as error:
                # The system reports it once and may have dropped what it could not write: a retry proves nothing.
                self._sync_error = str(error)
        self.expect_in_place()
        if self._sync_error is not None:
            raise OutcomeUnknown(
                f"{self._path}: the disk did not keep the log: {self._sync_error}",
                remedy="Repair the disk, start the program again, and repeat what failed under the same ids.",
            )

    def close(self) -> None:
        """Sync once more and close the log; what was committed before needs no more waiting."""
        # A thread that still waits gets the error when it syncs itself.
        with suppress(PostroadError):
            self.sync()
        log, self._log = self._log, None
        self._places, self._unchanged = (), None
        if log is not None:
            os.close(log)


def _is_settled(changed_ns: int) -> bool:
    """Return whether a further change would show another time; some file systems store whole or even seconds only."""
    tick = _TICK_NS if changed_ns % _SECOND_NS else _LONGEST_TICK_NS
    return time.time_ns() - changed_ns > tick


def _state(place: str) -> tuple[int, int, int] | None:
    """Return device, inode and time of the last change of a file or directory; None if it cannot be read."""
    try:
        found = os.stat(place)  # noqa: PTH116 - once for each sync: a Path would cost as much again
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _identity(place: str) -> tuple[int, int] | None:
    state = _state(place)
    return None if state is None else state[:2]


def to_disk(descriptor: int) -> None:
    """Wait until the bytes of a file are on the disk."""
    if sys.platform == "darwin":
        # There, fsync leaves the data in the drive's own memory.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


class Reserve:
    """A file beside the data that takes up room until the disk is full. All processes share it.

    Its size is the room it holds. The part of the head-room that a transaction must not use is counted in
    quarters: one that adds something must leave all four, a dead letter two, a lease one; a removal may use all.
    """

    def __init__(self, path: Path, *, keeps_room: bool = True) -> None:
        self._data_path, self._keeps_room = str(path), keeps_room
        self._file: int | None = None
        self._quarter = 0
        self._size = 0
        self._data_size = 0

    def open(self, writer: apsw.Connection | None = None) -> None:
        """Open the file; with a writer, take the room if the disk has any left."""
        if self._file is None and self._keeps_room:
            with suppress(OSError):
                self._file = os.open(f"{self._data_path}.reserve", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        """Whether it holds all of its room, and none is lent to transactions that empty a full disk."""
        return self._file is None or os.fstat(self._file).st_size >= 4 * self._quarter

    def expect_room(self, connection: apsw.Connection) -> None:
        """Raise `StorageFull` if the disk has no room left for messages, besides the room that is held here."""
        if self._file is None or not self._quarter:
            return
        disk = os.fstatvfs(self._file)
        spare = max(0, os.fstat(self._file).st_size - 4 * self._quarter)
        free: int = connection.execute(_FREE_PAGES).get * self._page_size
        if disk.f_bavail * disk.f_frsize + spare + free < _LEAST_ROOM:
            raise StorageFull(f"{self._data_path}: the disk is full")

    def require(self, writer: apsw.Connection) -> None:
        """Hold all of the room before anything is added, or raise `StorageFull`. The writer holds the write lock."""
        if self._file is None:
            return
        self._size = os.fstat(self._file).st_size
        # A reserve larger than the head-room was made large enough for the growth that is still to come.
        if self._size <= 4 * self._quarter:
            self.require_growth(writer, quarters=4, look=True)

    def require_growth(self, writer: apsw.Connection, *, quarters: int, look: bool) -> None:
        """Hold room for the pages that only the log and this transaction have, or raise `StorageFull`.

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

    def shrink_to(self, quarters: int) -> None:
        """Give the disk all room but so many quarters of the head-room."""
        if self._file is not None:
            size = quarters * self._quarter
            with self._locked() as file:
                if os.fstat(file).st_size > size:
                    os.ftruncate(file, size)

    def close(self) -> None:
        """Close the file; the room stays taken."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _grow(self, writer: apsw.Connection, needed: int, *, at_least: int) -> None:
        """Grow to the needed size. Free pages of the data count too, except for the least size it must have."""
        with self._locked() as file:
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
            raise StorageFull(f"{self._data_path}: the disk is full; nothing was stored")

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Keep others from changing the size meanwhile: a file made longer by truncation would hold no room."""
        assert self._file is not None
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._file
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _allocate(file: int, size: int, before: int) -> bool:
    """Return whether the disk had room to make the file this large; otherwise it is as large as before."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.pwrite(file, bytes(size - before), before)
    except OSError:
        os.ftruncate(file, before)
        return False
    return True


class Checkpoints:
    """Copies the log of one writer into the file before it grows long."""

    def __init__(self, reserve: Reserve, expect_in_place: Callable[[], None]) -> None:
        self._reserve = reserve
        self._expect_in_place = expect_in_place
        """Raises if the log is not the one at the path: copying it would damage the file of others."""
        self._pages = self._commits = 0
        self._due_at = CHECKPOINT_PAGES
        self._looked_at = -SHORT_PAGES
        self._is_short_of_room = False

    def follow(self, writer: apsw.Connection, busy: BusyHandler) -> None:
        """Count the pages in the writer's log after each commit. `busy` waits for the writer's locks."""
        self._writer, self._busy, self._pages, self._commits = writer, busy, 0, 0
        writer.set_wal_hook(self._count)

    def is_look_due(self) -> bool:
        """Return whether the file may have grown noticeably since the last call."""
        if not self._is_short_of_room and abs(self._pages - self._looked_at) < SHORT_PAGES:
            return False
        self._looked_at = self._pages
        return True

    def run_if_due(self) -> None:
        """Copy the log when it is long, so that it starts again from its beginning; on a full disk early."""
        if not self._is_short_of_room:
            if self._pages >= self._due_at or self._commits >= CHECKPOINT_COMMITS:
                self._run()
        elif self._reserve.is_whole:
            self._is_short_of_room = False
        elif self._pages >= SHORT_PAGES:
            self._copy_to_full_disk()

    def make_room(self, *, adds: bool) -> None:
        """Use the reserve to copy the log, so that the next commit overwrites it instead of making it longer.

        For a transaction that adds something, the disk also gets back the room of the log, which may be enough.
        """
        if adds:
            self._reserve.shrink_to(4)
            self.cut()
        else:
            self._is_short_of_room = True
            self._copy_to_full_disk()

    def cut(self) -> None:
        """Copy the log and give its room back to the disk, if possible."""
        self._expect_in_place()
        with suppress(apsw.Error):
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _copy_to_full_disk(self) -> None:
        self._reserve.shrink_to(1)
        with suppress(apsw.Error):
            try:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.FullError:
                self._reserve.shrink_to(0)
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._pages = 0

    def _count(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._commits += 1
        if pages <= self._pages:
            # Another process has copied the log, and it began again.
            self._commits, self._due_at = 1, CHECKPOINT_PAGES
        self._pages = pages
        return apsw.SQLITE_OK

    def _run(self) -> None:
        self._expect_in_place()
        # If another process copies it, a long reader keeps it or the disk is full, the log holds everything; trying
        # again at every commit would only cost time.
        self._commits, self._due_at = 0, self._pages + CHECKPOINT_PAGES // 4
        with suppress(apsw.Error):
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            failpoints.hit("engine.checkpoint.mid")
            # What other processes have committed meanwhile is copied too, or their log would never begin again.
            with self._busy.briefly(RESTART_SECONDS):
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._pages, self._due_at = 0, CHECKPOINT_PAGES
