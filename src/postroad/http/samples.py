"""Samples of the counters, from which the charts are drawn: every 5 seconds of ten minutes, every minute of a day.

What was sent to each queue is counted for the sparklines beside them, in steps of 15 seconds.

The counters only grow, so what happened between two samples is their difference, however many processes took part and
whether or not this server ran. Times are those of the monotonic clock; only what is stored has the wall clock's.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from postroad.queues import QueueOverview

FINE_SECONDS: Final = 5
COARSE_SECONDS: Final = 60
LONGEST_SECONDS: Final = 86_400
STEP_SECONDS: Final = 15
STEPS: Final = 40
"""Ten minutes."""
_FINE_WINDOW: Final = 600
_POINTS: Final = 60


class Sample(NamedTuple):
    """The counters at one time."""

    at: float
    sent: int
    acked: int
    dead: int
    backlog: int


class _Stored(msgspec.Struct):
    saved_at: float
    """The wall clock."""
    fine: list[Sample]
    """`at` is the age at that time, as in `coarse`."""
    coarse: list[Sample]


class Samples:
    """The samples of the last day. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine = _Ring(FINE_SECONDS, _FINE_WINDOW // FINE_SECONDS + 2)
        self._coarse = _Ring(COARSE_SECONDS, LONGEST_SECONDS // COARSE_SECONDS + 2)

    def add(self, sample: Sample) -> None:
        """Add the newest sample."""
        with self._lock:
            self._fine.add(sample)
            self._coarse.add(sample)

    @property
    def newest(self) -> Sample | None:
        """The newest sample; None before the first."""
        return self._fine.samples[-1] if self._fine.samples else None

    def series(self, window: int, now: float) -> tuple[int, list[int], list[int], list[int]]:
        """Return the step in seconds, and what was sent, acked and dead-lettered in each step, oldest first."""
        step, ends = self._ends(window, now)
        pairs = list(pairwise(ends))
        return (
            step,
            [max(0, after.sent - before.sent) for before, after in pairs],
            [max(0, after.acked - before.acked) for before, after in pairs],
            [max(0, after.dead - before.dead) for before, after in pairs],
        )

    def backlog(self, window: int, now: float) -> list[int]:
        """Return how many messages waited at the end of each step, oldest first; 0 before the first sample."""
        step, ends = self._ends(window, now)
        first = int(now // step) - len(ends) + 1
        return [0 if end.at >= (first + at + 1) * step else end.backlog for at, end in enumerate(ends)][1:]

    def dump(self, *, now: float, wall: float) -> bytes:
        """Return all samples, to be stored; the two clocks are read by the caller."""
        fine, coarse = (
            [each._replace(at=round(now - each.at, 1)) for each in ring.samples] for ring in (self._fine, self._coarse)
        )
        return zlib.compress(msgspec.json.encode(_Stored(wall, fine, coarse)))

    def restore(self, stored: bytes, *, now: float, wall: float) -> None:
        """Add what an earlier server stored; a clock that was set back does not move it into the future."""
        found = msgspec.json.decode(zlib.decompress(stored), type=_Stored)
        since = now - max(0.0, wall - found.saved_at)
        for ring, samples in ((self._fine, found.fine), (self._coarse, found.coarse)):
            for each in samples:
                ring.add(each._replace(at=since - each.at))

    def _ends(self, window: int, now: float) -> tuple[int, list[Sample]]:
        """Return the step, and the samples at the beginning of the window and at the end of each step."""
        ring = self._fine if window <= _FINE_WINDOW else self._coarse
        each = ring.seconds
        step = max(each, -(-window // _POINTS // each) * each)
        last = int(now // step)
        first = last - max(1, window // step)
        with self._lock:
            return step, [ring.until((slot + 1) * step) for slot in range(first, last + 1)]


class _Ring:
    """The last sample of each slot of so many seconds."""

    def __init__(self, seconds: int, most: int) -> None:
        self.seconds = seconds
        self.samples: deque[Sample] = deque(maxlen=most)

    def add(self, sample: Sample) -> None:
        # The first sample of all stays: what happens after it is the difference to it.
        if len(self.samples) > 1 and self.samples[-1].at // self.seconds == sample.at // self.seconds:
            self.samples.pop()
        self.samples.append(sample)

    def until(self, end: float) -> Sample:
        """Return the last sample before this time; the first one if there is none."""
        place = bisect_left(self.samples, end, key=lambda each: each.at)
        return self.samples[max(0, place - 1)] if self.samples else Sample(end, 0, 0, 0, 0)


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
