"""Counting what becomes of messages."""

from __future__ import annotations

import threading
from collections import Counter


class Tally:
    """Counts by name, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count `count` more."""
        with self._lock:
            self._counts[name] += count

    def take(self) -> dict[str, int]:
        """What was counted since the last time it was taken."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)
