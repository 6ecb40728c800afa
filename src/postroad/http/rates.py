"""How much was sent to each queue of late, for the sparklines beside them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from postroad.queues import QueueOverview

STEP_SECONDS: Final = 15
STEPS: Final = 40
"""Ten minutes."""


class QueueRates:
    """What was sent to each queue in each step; one that gets nothing takes no room. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[str, int] | None = None
        self._steps: deque[tuple[int, dict[str, int]]] = deque(maxlen=STEPS + 1)

    def add(self, queues: Iterable[QueueOverview], now: float) -> None:
        """Add what was sent since the last call; `now` is the monotonic clock's."""
        totals = {each.spec.name: each.counters.sent for each in queues if each.counters is not None}
        with self._lock:
            step = int(now // STEP_SECONDS)
            if not self._steps or self._steps[-1][0] != step:
                self._steps.append((step, {}))
            counts = self._steps[-1][1]
            if self._before is not None:
                for name, total in totals.items():
                    # A queue that was deleted and made again begins with 0.
                    sent = total - self._before.get(name, 0)
                    if sent > 0:
                        counts[name] = counts.get(name, 0) + sent
            self._before = totals

    def of(self, name: str, now: float) -> list[int]:
        """Return what was sent to the queue in each step of the last ten minutes, oldest first."""
        last = int(now // STEP_SECONDS)
        with self._lock:
            known = {step: counts.get(name, 0) for step, counts in self._steps}
        return [known.get(step, 0) for step in range(last - STEPS + 1, last + 1)]

    def busiest(self, most: int) -> list[str]:
        """Return the names of the queues to which most was sent, the busiest first."""
        sums: dict[str, int] = {}
        with self._lock:
            for _, counts in self._steps:
                for name, count in counts.items():
                    sums[name] = sums.get(name, 0) + count
        return sorted(sums, key=lambda name: (-sums[name], name))[:most]
