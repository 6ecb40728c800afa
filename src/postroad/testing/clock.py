"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

_START = datetime(2030, 1, 1, tzinfo=UTC)


class FakeClock:
    """Both clocks, moved by hand: time passes with `advance`, the wall clock alone moves with `set` and `step`."""

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
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError(f"seconds: {seconds!r} is negative; step() moves the wall clock back")
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds

    def set(self, now: datetime) -> None:
        """Put the wall clock to this moment, as a time server does; no time passes."""
        with self._lock:
            self._now = _aware(now)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator does; no time passes."""
        with self._lock:
            self._now += timedelta(seconds=seconds)

    def reboot(self, *, seconds: float = 60.0) -> None:
        """Start the machine anew: the wall clock has gone on, `monotonic` starts again under another boot id."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic = 1.0
            self._boots += 1


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return moment.astimezone(UTC)
