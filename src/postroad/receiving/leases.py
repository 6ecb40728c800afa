"""The messages a receiver holds: their leases are extended until they are settled."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence

from postroad.clock import Clock
from postroad.errors import NotSupported, PostroadError, StaleReceipt
from postroad.queues import Delivery, Queue

Failed = Callable[[Delivery, Exception], None]
# What is due within this part of the visibility is extended together with what is due now.
_SOON = 0.1


class Held:
    """A delivery that is not settled yet."""

    __slots__ = ("begun_at", "covered_until", "delivery", "lost", "queue")

    def __init__(self, queue: Queue, delivery: Delivery) -> None:
        self.queue = queue
        self.delivery = delivery
        self.begun_at: float | None = None
        self.covered_until = 0.0
        self.lost = False


class Leases:
    """All that is held. Every message is extended in time, waiting ones included, in batches."""

    def __init__(
        self,
        *,
        visibility: float,
        clock: Clock,
        failed: Failed,
        longest: float = math.inf,
        extend_every: float | None = None,
        on_extended: Callable[[Delivery], object] | None = None,
        on_lost: Callable[[Delivery], object] | None = None,
    ) -> None:
        self.visibility = visibility
        self._longest = longest
        self._ahead = visibility - (visibility / 2 if extend_every is None else extend_every)
        self._monotonic = clock.monotonic
        self._tell = failed
        self._on_extended, self._on_lost = on_extended, on_lost
        self._lock = threading.Lock()
        # Held while leases are extended, so that none is extended after it was settled.
        self._beating = threading.Lock()
        self._held: dict[int, Held] = {}
        self._can_extend = visibility > 0
        self.wake: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._held)

    def take(self, queue: Queue, deliveries: Iterable[Delivery]) -> list[Held]:
        """Hold what was just received."""
        until = self._monotonic() + self.visibility
        taken = [Held(queue, delivery) for delivery in deliveries]
        for held in taken:
            held.covered_until = until
        with self._lock:
            self._held.update({id(held): held for held in taken})
        self.wake()
        return taken

    def begin(self, held: Held) -> None:
        """A handler starts on it: from now on the longest time counts."""
        held.begun_at = self._monotonic()

    def let_go(self, helds: Iterable[Held]) -> None:
        """Extend these no more: they are about to be settled."""
        with self._beating, self._lock:
            for held in helds:
                self._held.pop(id(held), None)

    def due(self) -> float | None:
        """Return when the next lease needs an extension."""
        if not self._can_extend:
            return None
        with self._lock:
            until = min((held.covered_until for held in self._held.values() if self._coverable(held)), default=math.inf)
        return None if until == math.inf else until - self._ahead

    def run(self) -> None:
        """Extend what is due, and with it what soon will be."""
        with self._beating:
            soon = self._monotonic() + self._ahead + self.visibility * _SOON
            with self._lock:
                due = [held for held in self._held.values() if self._coverable(held) and held.covered_until <= soon]
            for queue in {id(held.queue): held.queue for held in due}.values():
                self._extend(queue, [held for held in due if held.queue is queue])

    def _coverable(self, held: Held) -> bool:
        too_long = held.begun_at is not None and self._monotonic() - held.begun_at > self._longest
        return not held.lost and not too_long

    def _extend(self, queue: Queue, helds: Sequence[Held]) -> None:
        until = self._monotonic() + self.visibility
        try:
            results = queue.extend([held.delivery for held in helds], seconds=self.visibility)
            failures = [None if result.ok else result.error for result in results]
        except PostroadError as error:
            failures = [error for _ in helds]
        for held, failure in zip(helds, failures, strict=True):
            if failure is not None:
                self._failed(held, failure)
                continue
            held.covered_until = until
            if self._on_extended is not None:
                self._on_extended(held.delivery)

    def _failed(self, held: Held, error: Exception) -> None:
        if isinstance(error, NotSupported):
            self._can_extend = False
            return
        held.lost = isinstance(error, StaleReceipt)
        # Tried again soon, while the lease may still hold.
        held.covered_until += self.visibility / 8
        self._tell(held.delivery, error)
        if held.lost and self._on_lost is not None:
            self._on_lost(held.delivery)
