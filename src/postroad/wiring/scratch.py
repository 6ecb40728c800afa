"""An embedded file that ends with its owner, for parts of the memory ground that need tables."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from postroad.clock import Clock
from postroad.connections.engine import Engine


class Scratch:
    """A file in a temporary directory, removed when it is closed or forgotten."""

    def __init__(self, clock: Clock) -> None:
        directory = tempfile.mkdtemp(prefix="postroad-")
        self._remove = weakref.finalize(self, _remove, directory, os.getpid())
        self.engine = Engine(Path(directory) / "memory.db", clock=clock)

    def close(self) -> None:
        """Close the file and remove it; closing twice changes nothing."""
        self.engine.close()
        self._remove()


def _remove(directory: str, owner: int) -> None:
    # A forked child that ends, or drops its copy, must not take the file from its parent.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
