"""What consumers count."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What became of the messages of one `run_once`."""

    received: int = 0
    handled: int = 0
    duplicates: int = 0
    failed: int = 0
    released: int = 0
    """Given back unhandled: behind a failed one of their group, held by somebody else, or at a stop."""
    dead: int = 0
    ignored: int = 0


class Tally:
    """Counts of several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count `count` more."""
        with self._lock:
            self._counts[name] += count

    def report(self) -> ConsumeReport:
        """What was counted since the last report."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return ConsumeReport(**counts)
