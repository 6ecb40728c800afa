"""How much one caller may ask in a second."""

from __future__ import annotations

from postroad.clock import Clock
from postroad.errors import RateLimited


class RateLimits:
    """A bucket for each caller that holds `burst` seconds' worth and fills as time goes by."""

    def __init__(self, per_second: int, clock: Clock, *, burst: int = 1, what: str = "requests") -> None:
        self._rate = float(per_second)
        self._most = self._rate * burst
        self._what = what
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str, count: int = 1) -> None:
        """Count so many, or raise `RateLimited` with the seconds until they fit. 0 is no limit."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        left, at = self._buckets.get(caller, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        if left < count:
            raise RateLimited(
                f"more than {self._rate:.0f} {self._what} per second by one caller",
                retry_after=(count - left) / self._rate,
            )
        self._buckets[caller] = (left - count, now)
