"""`X.db.up`: which `postroad up` runs on this data, held by a lock that ends with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from postroad.errors import Unavailable


class _Runs(msgspec.Struct, frozen=True):
    pid: int
    url: str


class UpFile:
    """The lock of one `postroad up`. A file left behind by a crash holds no lock and is no obstacle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = _locked(path)

    def announce(self, url: str) -> None:
        """Say where this one can be found."""
        data = msgspec.json.encode(_Runs(os.getpid(), url))
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, data, 0)

    def release(self) -> None:
        """Make room for the next one."""
        # Removed while it is still locked: a file that somebody else locked meanwhile must not be removed.
        self.path.unlink(missing_ok=True)
        os.close(self._handle)


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, the one before us may have removed the file; then the lock is on nothing.
            if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            raise _taken(path) from None
        os.close(handle)


def _taken(path: Path) -> Unavailable:
    try:
        runs = msgspec.json.decode(path.read_bytes(), type=_Runs)
        who = f"with pid {runs.pid} at {runs.url}"
    except (OSError, msgspec.DecodeError):
        who = "and is just starting"
    return Unavailable(
        f"postroad up already runs on this data {who}",
        remedy="Use that one, stop it first, or choose other data with --url.",
    )
