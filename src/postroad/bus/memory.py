"""What one bus remembers of the events that passed through it, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from uuid import UUID

from postroad.bus.config import SQSEventBusConfig
from postroad.bus.deduplication import DeduplicationCache
from postroad.bus.result import EventHandler
from postroad.clock import Clock

# An own event may come back as late as the longest retention of a queue.
_ECHO_SECONDS = 1_209_600.0
_MOST = 10_000


Failure = tuple[EventHandler, str]
"""A handler, and the error with which it failed."""
_Done = tuple[EventHandler, str | None]


class Memory:
    """Event ids that are done, and for those that come again the handlers that need not run any more."""

    def __init__(self, config: SQSEventBusConfig, clock: Clock) -> None:
        self.published = DeduplicationCache(_ECHO_SECONDS, clock=clock)
        self.handled = DeduplicationCache(config.deduplication_window_seconds, clock=clock)
        self._window = config.deduplication_window_seconds
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._done: dict[UUID, tuple[float, tuple[_Done, ...]]] = {}

    def note_succeeded(self, event_id: UUID, handlers: Sequence[EventHandler]) -> None:
        """Remember which handlers need not run again when the event comes back."""
        self._note(event_id, [(handler, None) for handler in handlers])

    def note_given_up(self, event_id: UUID, failures: Sequence[Failure]) -> None:
        """Remember which handlers have used up their attempts while others still need the event."""
        self._note(event_id, failures)

    def forget(self, event_id: UUID) -> None:
        """The event is done as a whole."""
        with self._lock:
            self._done.pop(event_id, None)

    def forget_given_up(self, event_id: UUID) -> None:
        """The event becomes a dead letter: if it is redriven, those who gave up on it have new attempts."""
        with self._lock:
            if event_id in self._done:
                until, done = self._done[event_id]
                self._done[event_id] = until, tuple(each for each in done if each[1] is None)

    def remaining(self, event_id: UUID, handlers: Sequence[EventHandler]) -> tuple[list[EventHandler], list[Failure]]:
        """Return the handlers that still have to run, and those that gave up; one subscribed twice counts twice."""
        left, failures = list(handlers), []
        with self._lock:
            until, done = self._done.get(event_id, (0.0, ()))
        for handler, error in done if until > self._monotonic() else ():
            if handler in left:
                left.remove(handler)
                if error is not None:
                    failures.append((handler, error))
        return left, failures

    def _note(self, event_id: UUID, done: Sequence[_Done]) -> None:
        with self._lock:
            _, before = self._done.pop(event_id, (0.0, ()))
            self._done[event_id] = (self._monotonic() + self._window, (*before, *done))
            while len(self._done) > _MOST:
                del self._done[next(iter(self._done))]
