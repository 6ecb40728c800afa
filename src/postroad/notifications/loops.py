"""Consumer loops: turns until a stop, with pauses after failures, and a sign of life at each turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from postroad.backoff import Backoff
from postroad.notifications.intake import Intake
from postroad.notifications.telling import Teller

_SLICE_SECONDS = 0.5


class Loop:
    """Receives from one queue until told to stop."""

    def __init__(
        self,
        intake: Intake,
        teller: Teller,
        *,
        wait: float,
        pause: float,
        check_database: Callable[[], None],
        most: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.intake = intake
        self._teller = teller
        self._wait, self._pause = wait, pause
        self._check_database = check_database
        self._most = most
        self._waited = 0.0
        self.turned_at: float | None = None
        """The monotonic time of the last turn; None before the first."""

    def run(self, stop: threading.Event) -> None:
        """Turn until told to stop."""
        backoff = Backoff()
        while not stop.is_set():
            self.turned_at = time.monotonic()
            try:
                self._turn(stop)
                backoff.reset()
            except Exception as error:
                self._teller.paused(error)
                stop.wait(backoff.next())

    def _turn(self, stop: threading.Event) -> None:
        if self.intake.database_failed:
            # Receiving now would only use up receives.
            self._check_database()
            self.intake.database_failed = False
        most = self._most()
        if most == 0:
            stop.wait(_SLICE_SECONDS)
        elif self.intake.wait_for_room(_SLICE_SECONDS):
            self._receive(stop, most)

    def _receive(self, stop: threading.Event, most: int | None) -> None:
        # Where asking costs nothing a long wait is made of short ones, so that a stop is noticed soon.
        wait = min(self._wait, _SLICE_SECONDS) if self.intake.queue.traits.short_waits else self._wait
        if self.intake.receive(wait, most=most):
            self._waited = 0.0
            return
        self._waited += wait
        if self._waited >= self._wait:
            self._waited = 0.0
            stop.wait(self._pause)
