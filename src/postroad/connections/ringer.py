"""Ringing for a crowd without keeping the one who wrote: its wake-ups would take the processor from it."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Final

from postroad.connections.wakeup import Doorbell

CROWD: Final = 8


class Ringer:
    """Rings for a few processes at once, and for many on a thread of its own."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._lock = threading.Lock()
        self._rings: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ring(self, channels: bytes) -> None:
        """Tell the other processes which channels changed, now or in a moment."""
        if len(self._doorbell.listeners()) < CROWD:
            self._doorbell.ring(channels)
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="postroad-ringer", daemon=True)
                self._thread.start()
        self._rings.put(channels)

    def close(self) -> None:
        """Ring for what is left, and end."""
        self._rings.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (channels := self._rings.get()) is not None:
            self._doorbell.ring(channels)
