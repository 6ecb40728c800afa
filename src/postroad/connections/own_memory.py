"""The memory of one process: a forked child gets a copy of it that nobody else will ever see."""

from __future__ import annotations

import os
import threading

from postroad.errors import ConfigurationError


class OwnMemory(threading.Condition):
    """The lock of what lives in memory. A child that inherited it, and whoever comes after `close`, is refused.

    A child is refused before it waits for a lost owner; who waits while it is closed is woken and refused.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(self.lock)
        self._pid: int | None = os.getpid()

    def __enter__(self) -> bool:
        if os.getpid() != self._pid:
            raise self._refusal()
        entered = super().__enter__()
        if self._pid is None:
            # It was closed while this one waited for its turn.
            self.lock.release()
            raise self._refusal()
        return entered

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; `ConfigurationError` when it was closed meanwhile."""
        notified = super().wait(timeout)
        self.check()
        return notified

    def check(self) -> None:
        """Refuse who may not use this memory, or no longer."""
        if os.getpid() != self._pid:
            raise self._refusal()

    def close(self) -> None:
        """Refuse every use from now on; closing twice changes nothing."""
        if os.getpid() == self._pid:
            with self.lock:
                self._pid = None
                self.notify_all()

    def _refusal(self) -> ConfigurationError:
        if self._pid is None:
            return ConfigurationError("memory://: this backend is closed; open a new one with connect()")
        return ConfigurationError(
            "memory://: this backend was opened before fork(); a child opens its own with connect()",
            remedy="Open a backend in the child; what both must see belongs into a file (sqlite:///path).",
        )
