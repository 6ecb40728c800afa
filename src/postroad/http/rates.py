"""How much one caller may ask in a second."""

from __future__ import annotations

from postroad.clock import Clock
from postroad.errors import RateLimited


class RateLimits:
    """A bucket for each caller that holds a second's worth of requests and fills as time goes by."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._rate = float(per_second)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Count one request, or raise `RateLimited` with the seconds until the next one fits. 0 is no limit."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        left, at = self._buckets.get(caller, (self._rate, now))
        left = min(self._rate, left + (now - at) * self._rate)
        if left < 1:
            raise RateLimited(
                f"more than {self._rate:.0f} requests per second by one token", retry_after=(1 - left) / self._rate
            )
        self._buckets[caller] = (left - 1, now)
