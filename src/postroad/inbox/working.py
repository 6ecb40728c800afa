"""The thread of a consumer that receives until it is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from postroad.backoff import Backoff
from postroad.inbox.shift import Shift
from postroad.inbox.telling import Teller
from postroad.queues import Delivery

_SLICE_SECONDS = 0.5


class LookAround(Protocol):
    """What is looked after between two receives."""

    def __call__(self, *, database_failed: bool) -> None:
        """Raise when nothing may be received now."""
        ...


class Work:
    """One start of a consumer. Its stop signal is its own, so that an old thread never comes back to life."""

    def __init__(
        self,
        shift: Shift,
        receive: Callable[[], list[Delivery]],
        look_around: LookAround,
        teller: Teller,
        reporting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._shift = shift
        self._receive = receive
        self._look_around = look_around
        self._teller = teller
        self._reporting = reporting
        self._stopping = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="postroad-receiver", daemon=True)

    def stop(self, timeout: float | None) -> bool:
        """Whether everything ended in time. What nothing began on is given back at once."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._stopping.set()
        ended = self._shift.stop(timeout)
        if self._shift.is_here:
            return True
        self.thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return ended and not self.thread.is_alive()

    def _run(self) -> None:
        backoff = Backoff()
        try:
            # Reports end with this thread, so that nobody takes a consumer for alive that is not.
            with self._reporting():
                while not self._stopping.is_set():
                    self._turn(backoff)
        except BaseException as error:
            self.error = error

    def _turn(self, backoff: Backoff) -> None:
        try:
            self._look_around(database_failed=self._shift.database_failed)
            self._shift.database_failed = False
            if self._shift.wait_for_a_free_thread(_SLICE_SECONDS):
                self._shift.hand_out(self._receive())
            backoff.reset()
        except Exception as error:
            self._teller.paused(error)
            self._stopping.wait(backoff.next())
