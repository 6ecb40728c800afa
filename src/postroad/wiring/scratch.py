"""The place of `memory://`: a directory in memory that ends with its owner."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a file system in memory, not a temporary file
_PREFIX: Final = "postroad-memory"


class Scratch:
    """A directory that is removed when it is closed, at the end of the process, or by the next one after a crash.

    A lock on a file beside it says that its owner lives.
    """

    def __init__(self) -> None:
        place = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        mine = f"{_PREFIX}-{os.getuid()}-"
        _remove_abandoned(place, mine)
        lock, path = _locked(place, mine)
        self.path = path.with_suffix("")
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove the directory; closing twice changes nothing."""
        self._remove()


def _locked(place: Path, prefix: str) -> tuple[int, Path]:
    """Make a lock file and lock it, before another process takes it for abandoned."""
    while True:
        path = place / f"{prefix}{uuid.uuid4().hex}.lock"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return file, path
        os.close(file)


def _remove_abandoned(place: Path, prefix: str) -> None:
    """Remove what processes of this user left that were killed."""
    for path in place.glob(f"{prefix}*.lock"):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(path.with_suffix(""))
            finally:
                os.close(file)


def _remove(directory: Path, lock: int, owner: int) -> None:
    # A forked child that ends, or drops its copy, must not take the directory from its parent.
    if os.getpid() == owner:
        _clear(directory)
        os.close(lock)


def _clear(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.with_suffix(".lock").unlink(missing_ok=True)
