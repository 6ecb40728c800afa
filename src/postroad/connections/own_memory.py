"""The memory of one process: a forked child gets a copy of it that nobody else will ever see."""

from __future__ import annotations

import os
import threading

from postroad.errors import ConfigurationError


class OwnMemory(threading.Condition):
    """The lock of what lives in memory. A child that inherited it is refused, before it waits for a lost owner."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(self.lock)
        self._pid = os.getpid()

    def __enter__(self) -> bool:
        if os.getpid() != self._pid:
            raise ConfigurationError(
                "memory://: this backend was opened before fork(); a child opens its own with connect()",
                remedy="Open a backend in the child; what both must see belongs into a file (sqlite:///path).",
            )
        return super().__enter__()
