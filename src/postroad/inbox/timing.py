"""How long handlers take, and what follows for the queue's visibility."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

CALLS = 50
_REMEMBERED = 1_000
TOO_SHORT = "visibility_too_short"


class Timing:
    """The latest calls of one handler."""

    def __init__(self, queue: str, visibility: float) -> None:
        self._queue = queue
        self._visibility = visibility
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._calls = 0
        self.advice: Mapping[str, str] = {}

    def add(self, seconds: float) -> bool:
        """Remember one call; says whether there is new advice. It is thought over after every fifty calls."""
        with self._lock:
            self._seconds.append(seconds)
            self._calls += 1
            if self._calls % CALLS:
                return False
            advised = bool(self.advice)
            self.advice = advise(self._queue, self._visibility, p99(self._seconds))
            return bool(self.advice) and not advised


def p99(seconds: deque[float]) -> float:
    """The time within which ninety-nine of a hundred calls ended."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)]


def advise(queue: str, visibility: float, slow: float) -> Mapping[str, str]:
    """What to change, by the name of the warning."""
    if visibility >= 2 * slow:
        return {}
    return {
        TOO_SHORT: f"queue {queue!r} hides messages for {visibility:g} s, below twice the handler's p99 of {slow:.3g} s"
        f"; set its visibility to {2 * slow:.3g} s or more"
    }
