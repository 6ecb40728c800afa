"""The disk under the log.

A commit writes to the log without waiting for the disk. Whoever promised that it survives a power cut waits here
afterwards, when the turn to write is already another thread's.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path

from postroad.errors import OutcomeUnknown


class Disk:
    """Brings the log of one file to the disk; its owner sees to it that nobody syncs while it is opened or closed."""

    def __init__(self) -> None:
        self._log: int | None = None
        self._refused: str | None = None

    def open(self, path: Path) -> None:
        """Take the log of the file, which is open."""
        self._log = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Return once everything that was committed before this call is on the disk, or raise `OutcomeUnknown`."""
        if self._log is not None and self._refused is None:
            try:
                _to_disk(self._log)
            except OSError as error:
                # The system says it once and may have dropped what it could not write: a second try proves nothing.
                self._refused = str(error)
        if self._refused is not None:
            raise OutcomeUnknown(
                f"the disk did not keep the log: {self._refused}",
                remedy="Repair the disk, start the program again, and repeat what failed under the same ids.",
            )

    def close(self) -> None:
        """Sync once more and let the log go; what was committed before needs no more waiting."""
        # Whoever still waits is told when it asks.
        with suppress(OutcomeUnknown):
            self.sync()
        log, self._log = self._log, None
        if log is not None:
            os.close(log)


def _to_disk(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync leaves it in the drive's own memory there.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)
