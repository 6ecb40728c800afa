"""Who still uses what a bus is about to close."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Occupancy:
    """Counts those inside; what has to wait for the last of them runs when it leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._afterwards: Callable[[], None] | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be one of those inside for as long as the block runs."""
        with self._lock:
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
            self._act()

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run the action once when nobody is inside: now, or on the thread of the last one to leave."""
        with self._lock:
            self._afterwards = action
        self._act()

    def _act(self) -> None:
        with self._lock:
            if self._inside or self._afterwards is None:
                return
            action, self._afterwards = self._afterwards, None
        action()
