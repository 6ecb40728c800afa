"""How often a message was tried: receives on which nothing began do not count."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from postroad.clock import Clock
from postroad.queues import Delivery

_MOST = 10_000
# Somebody else may have received a message that was expected here.
_GIVE_UP_SECONDS = 30.0


class Attempts:
    """Counts the attempts at the messages of one receiver, and knows which failed ones are about to come again.

    A FIFO queue hands out a group's messages together and counts each receive of each of them. One that fails would
    take those behind it along to the dead letters, though nobody ever handled them; so it is received alone.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._spared: dict[str, int] = {}
        self._expected: dict[str, float] = {}

    def spare(self, deliveries: Iterable[Delivery]) -> None:
        """Nothing began on these receives, so they are not attempts."""
        with self._lock:
            for delivery in deliveries:
                self._spared[delivery.message_id] = self._spared.pop(delivery.message_id, 0) + 1
            while len(self._spared) > _MOST:
                del self._spared[next(iter(self._spared))]

    def number(self, delivery: Delivery) -> int:
        """Return the number of the attempt that this receive is."""
        with self._lock:
            return max(1, delivery.receive_count - self._spared.get(delivery.message_id, 0))

    def expect(self, delivery: Delivery, after: float) -> None:
        """The failed message comes again after so many seconds."""
        with self._lock:
            self._expected[delivery.message_id] = self._monotonic() + after

    def seen(self, deliveries: Sequence[Delivery]) -> None:
        """These have come."""
        if not self._expected:
            return
        with self._lock:
            for delivery in deliveries:
                self._expected.pop(delivery.message_id, None)

    def batch(self, most: int, wait: float) -> int:
        """Return how many messages to receive: one when an expected message may be among them."""
        if not self._expected:
            return most
        now = self._monotonic()
        with self._lock:
            self._expected = {key: due for key, due in self._expected.items() if due > now - _GIVE_UP_SECONDS}
            return 1 if any(due <= now + wait for due in self._expected.values()) else most
