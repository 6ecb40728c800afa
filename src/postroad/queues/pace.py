"""A ceiling on how many messages go in any second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from postroad.arguments import FINITE, check

STEP = 500

Rate = Annotated[float, Meta(gt=0, le=FINITE, description="a number of messages per second above 0")]


class Pace:
    """How many messages the next step may move. `rate` below one means one message in that many seconds."""

    def __init__(self, rate: float | None, *, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        check(rate, Rate | None, "rate")
        self._window = 1.0 if rate is None or rate >= 1 else 1 / rate
        self._ceiling = math.inf if rate is None else max(1, math.floor(rate))
        self._monotonic = monotonic
        self._sleep = sleep
        self._spent: deque[tuple[float, int]] = deque()

    def allowance(self) -> int:
        """Wait until something may move; how many, at most a step."""
        while (free := self._ceiling - self._in_window()) < 1:
            self._sleep(max(0.001, self._spent[0][0] + self._window - self._monotonic()))
        return int(min(STEP, free))

    def spend(self, count: int) -> None:
        """Remember that so many moved by now."""
        if count and self._ceiling < math.inf:
            self._spent.append((self._monotonic(), count))

    def _in_window(self) -> int:
        now = self._monotonic()
        while self._spent and now - self._spent[0][0] >= self._window:
            self._spent.popleft()
        return sum(count for _, count in self._spent)
