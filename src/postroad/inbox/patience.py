"""Messages that are about to come again, received alone so that those behind them in their group do not wear out.

A FIFO queue hands out a group's messages together and counts each receive of each of them. One that fails would take
those behind it along to the dead letters, though nobody has ever handled them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from postroad.clock import Clock
from postroad.queues import Delivery

# Somebody else may have received it meanwhile.
_GIVE_UP_SECONDS = 30.0


class Patience:
    """The failed messages of one consumer and when each of them comes again."""

    def __init__(self, clock: Clock, *, enabled: bool) -> None:
        self._monotonic = clock.monotonic
        self._enabled = enabled
        self._lock = threading.Lock()
        self._expected: dict[str, float] = {}

    def expect(self, delivery: Delivery, after: float) -> None:
        """The message comes again after so many seconds."""
        if self._enabled:
            with self._lock:
                self._expected[delivery.message_id] = self._monotonic() + after

    def seen(self, deliveries: Sequence[Delivery]) -> None:
        """These have come."""
        with self._lock:
            for delivery in deliveries:
                self._expected.pop(delivery.message_id, None)

    def batch(self, most: int, wait: float) -> int:
        """How many messages to receive: one when an expected message may be among them."""
        if not self._expected:
            return most
        now = self._monotonic()
        with self._lock:
            self._expected = {key: due for key, due in self._expected.items() if due > now - _GIVE_UP_SECONDS}
            return 1 if any(due <= now + wait for due in self._expected.values()) else most
