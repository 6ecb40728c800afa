"""What a worker did."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Messages stored and pushes relayed, devices reached and dropped, and messages that were not done."""

    stored: int = 0
    duplicates: int = 0
    relayed: int = 0
    """Pushes that went from the outbox to the queue."""
    sent: int = 0
    """Devices that got a push."""
    dropped: int = 0
    """Devices that are dead."""
    retried: int = 0
    deferred: int = 0
    dead_lettered: int = 0


class Tally:
    """Counts for one report, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count it."""
        with self._lock:
            self._counts[name] += count

    def take(self) -> WorkerReport:
        """What was counted since the last report."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return WorkerReport(**counts)
