"""A clock for tests, which stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

_START = datetime(2030, 1, 1, tzinfo=UTC)


class FakeClock:
    """A wall clock and a monotonic clock for tests, for `connect(url, clock=...)`.

    Args:
        now: The time of the wall clock at the start, with a time zone; by default 2030-01-01 in UTC.

    Raises:
        ValueError: The time has no time zone.

    Example:
        clock = FakeClock()
        with connect("memory://", clock=clock) as backend:
            clock.advance(60)
    """

    def __init__(self, now: datetime = _START) -> None:
        self._lock = threading.Lock()
        self._now = _aware(now)
        self._monotonic = 1_000.0
        self._boots = 1

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        if seconds < 0:
            raise ValueError(f"seconds: {seconds!r} is negative; step() moves the wall clock back")
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds

    def set(self, now: datetime) -> None:
        """Set the wall clock to `now`, as a time server does; the monotonic clock stays."""
        with self._lock:
            self._now = _aware(now)

    def step(self, seconds: float) -> None:
        """Move the wall clock by `seconds`, forward or back, as an operator does; the monotonic clock stays."""
        with self._lock:
            self._now += timedelta(seconds=seconds)

    def reboot(self, *, seconds: float = 60.0) -> None:
        """Simulate a restart that takes `seconds`: the wall clock goes on, and the monotonic one begins again."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic = 1.0
            self._boots += 1


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return moment.astimezone(UTC)
