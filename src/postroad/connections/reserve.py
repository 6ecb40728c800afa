"""Room on the disk that is kept for acks and deletes: without it a full disk could never be emptied.

A checkpoint copies the log into the file, which grows by the pages that are new in the log. An ack on a full disk needs
room for that growth and for its own pages. So before each commit that adds something, the reserve is made as large as
the growth that is still to come plus some head-room; where the disk has no room for it, nothing is added.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from postroad.errors import StorageFull

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
