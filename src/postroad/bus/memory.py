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


class Memory:
    """Event ids that are done, and handlers that have succeeded."""

    def __init__(self, config: SQSEventBusConfig, clock: Clock) -> None:
        self.published = DeduplicationCache(_ECHO_SECONDS, clock=clock)
        self.handled = DeduplicationCache(config.deduplication_window_seconds, clock=clock)
        self._window = config.deduplication_window_seconds
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._succeeded: dict[UUID, tuple[float, tuple[EventHandler, ...]]] = {}

    def note_succeeded(self, event_id: UUID, handlers: Sequence[EventHandler]) -> None:
        """Remember which handlers need not run again when the event comes back."""
        with self._lock:
            _, before = self._succeeded.pop(event_id, (0.0, ()))
            self._succeeded[event_id] = (self._monotonic() + self._window, (*before, *handlers))
            _bound(self._succeeded)

    def forget_succeeded(self, event_id: UUID) -> None:
        """The event is done as a whole."""
        with self._lock:
            self._succeeded.pop(event_id, None)

    def remaining(self, event_id: UUID, handlers: Sequence[EventHandler]) -> list[EventHandler]:
        """The handlers that have not succeeded with this event yet; one subscribed twice counts twice."""
        left = list(handlers)
        with self._lock:
            until, succeeded = self._succeeded.get(event_id, (0.0, ()))
        if until > self._monotonic():
            for handler in succeeded:
                if handler in left:
                    left.remove(handler)
        return left


def _bound(entries: dict[UUID, tuple[float, tuple[EventHandler, ...]]]) -> None:
    while len(entries) > _MOST:
        del entries[next(iter(entries))]
