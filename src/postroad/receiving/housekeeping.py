"""The one thread of a receiver that does what is due while its other threads wait or handle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from postroad.clock import Clock, SystemClock

_IDLE_SECONDS = 5.0
_AFTER_FAILURE = 1.0
# A clock that only moves when a test moves it wakes nobody.
_LOOK_AGAIN = 0.02


class Chore(Protocol):
    """Something that is due at times."""

    def due(self) -> float | None:
        """The monotonic time at which to run next; None when there is nothing to do."""
        ...

    def run(self) -> None:
        """Do what is due. It raises nothing."""
        ...


class Housekeeper:
    """Runs chores when they are due. Its thread starts when first woken and ends when there is nothing to wait for."""

    def __init__(self, clock: Clock, chores: Sequence[Chore], *, failed: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._chores = chores
        self._tell = failed
        self._steps = isinstance(clock, SystemClock)
        self.owner: object = None
        """Lives for as long as there are chores to wait for."""
        self._changed = threading.Condition()
        self._planned = 0.0
        self._running = False

    def wake(self) -> None:
        """Look again at what is due; costs nothing when that is not earlier than planned."""
        due = self._next_due()
        if due is None:
            return
        with self._changed:
            if self._running and due >= self._planned:
                return
            if self._running:
                self._changed.notify()
                return
            self._running, self._planned = True, due
            threading.Thread(target=self._run, name="postroad-housekeeping", daemon=True).start()

    def _next_due(self) -> float | None:
        dues = [due for chore in self._chores if (due := chore.due()) is not None]
        return min(dues, default=None)

    def _run(self) -> None:
        while self._wait():
            now = self._clock.monotonic()
            for chore in self._chores:
                due = chore.due()
                if due is not None and due <= now:
                    self._do(chore)

    def _do(self, chore: Chore) -> None:
        try:
            chore.run()
        except Exception as error:
            # One chore must not end the others, nor keep this thread busy with failing.
            self._tell(error)
            time.sleep(_AFTER_FAILURE)

    def _wait(self) -> bool:
        """Wait until something is due; False ends the thread."""
        with self._changed:
            while True:
                due = self._next_due()
                if due is not None and due <= self._clock.monotonic():
                    return True
                idle = due is None
                self._planned = float("inf") if due is None else due
                left = _IDLE_SECONDS if due is None else due - self._clock.monotonic()
                woken = self._changed.wait(left if self._steps or idle else min(left, _LOOK_AGAIN))
                if idle and not woken and self._next_due() is None:
                    self._running = False
                    return False
