"""How much one caller may ask in a second."""

from __future__ import annotations

from postroad.clock import Clock
from postroad.errors import RateLimited

MAX_BUCKETS = 10_000


class RateLimits:
    """A bucket for each caller that holds `burst` seconds' worth and fills as time goes by.

    Of more than 10,000 callers those that asked longest ago are forgotten: their buckets are full again.
    """

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
        # The one that asked last stands at the end.
        left, at = self._buckets.pop(caller, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        enough = left >= count
        self._buckets[caller] = (left - count if enough else left, now)
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        if not enough:
            raise RateLimited(
                f"more than {self._rate:.0f} {self._what} per second by one caller",
                retry_after=(count - left) / self._rate,
            )
