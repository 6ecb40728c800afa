"""Room on the disk that is kept for acks and deletes: without it a full disk could never be emptied."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from postroad.errors import StorageFull

HEAD_ROOM: Final = 1_048_576


class Reserve:
    """A file beside the data that takes up room until the disk is full. All processes share it."""

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path}.reserve")
        self._file: int | None = None

    def open(self) -> None:
        """Take the room, if there is any left."""
        with suppress(OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(StorageFull):
            self.keep()

    def keep(self) -> None:
        """Take the room again if it was given away; `StorageFull` when the disk has none."""
        if self._file is None or os.fstat(self._file).st_size >= HEAD_ROOM:
            return
        try:
            _allocate(self._file, HEAD_ROOM)
        except OSError as error:
            os.ftruncate(self._file, 0)
            raise StorageFull(f"{self._path.with_suffix('')}: the disk is full; nothing was stored") from error

    def give(self) -> bool:
        """Let the disk have the room; whether there was any to give."""
        if self._file is None or os.fstat(self._file).st_size == 0:
            return False
        os.ftruncate(self._file, 0)
        return True

    def close(self) -> None:
        """Let the file go; the room stays taken."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _allocate(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.pwrite(file, bytes(size), 0)
