"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

_START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """Both clocks, moved by hand: time passes with `advance`, the wall clock alone steps with `step`."""

    def __init__(self, now: datetime = _START) -> None:
        self._lock = threading.Lock()
        self._now = now
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
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds

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
