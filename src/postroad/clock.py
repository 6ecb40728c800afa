"""Clocks: `now` for times that are stored, `monotonic` for times that are measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@runtime_checkable
class Clock(Protocol):
    """Where Postroad reads the time; tests use a clock of their own."""

    def now(self) -> datetime:
        """Return the time of day in UTC, with its time zone."""
        ...

    def monotonic(self) -> float:
        """Return the seconds of a clock that never steps and that all processes of this machine share."""
        ...

    def boot_id(self) -> str:
        """Return the id of the current run of the machine, within which `monotonic` can be compared."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            # Without the kernel's id, use the time of booting, rounded so that drift does not change it.
            return f"booted-{round((time.time() - time.monotonic()) / 60)}"


SYSTEM_CLOCK = SystemClock()


def microseconds(clock: Clock) -> tuple[Callable[[], int], Callable[[], int]]:
    """Return both clocks in whole microseconds: `monotonic`, and `now` since 1970."""
    if isinstance(clock, SystemClock):
        return lambda: time.monotonic_ns() // 1_000, lambda: time.time_ns() // 1_000
    return lambda: int(clock.monotonic() * 1_000_000), lambda: int(clock.now().timestamp() * 1_000_000)
