"""Leases of effects outside, renewed while their handlers run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from postroad.clock import Clock
from postroad.inbox.inbox import Inbox
from postroad.inbox.records import Effect

_SHORTEST = 1.0


class Renewals:
    """Renews every running effect when half of its lease is over.

    A lease takes half of the queue's visibility: after a crash it is over before the message comes again.
    """

    def __init__(self, inbox: Inbox, visibility: float, clock: Clock) -> None:
        self.lease = max(_SHORTEST, visibility / 2)
        self._inbox = inbox
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, Effect]] = {}
        self.wake: Callable[[], None] = lambda: None

    @contextmanager
    def kept(self, effect: Effect) -> Iterator[None]:
        """Keep the effect's lease alive inside the block."""
        with self._lock:
            self._running[effect.idempotency_key] = (self._monotonic() + self.lease / 2, effect)
        self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(effect.idempotency_key, None)

    def due(self) -> float | None:
        """When the next lease needs a renewal."""
        with self._lock:
            return min((due for due, _ in self._running.values()), default=None)

    def run(self) -> None:
        """Renew what is due. One that another attempt has taken over is let go; its handler's finish will tell."""
        now = self._monotonic()
        with self._lock:
            due = [effect for at, effect in self._running.values() if at <= now]
        for effect in due:
            kept = self._inbox.renew(effect, lease=self.lease)
            with self._lock:
                if effect.idempotency_key not in self._running:
                    continue
                if kept:
                    self._running[effect.idempotency_key] = (now + self.lease / 2, effect)
                else:
                    del self._running[effect.idempotency_key]
