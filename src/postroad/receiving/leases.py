"""The messages a receiver holds: leases that are extended, acks in batches, and how often each was tried."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from postroad.clock import Clock
from postroad.errors import NotSupported, PostroadError, StaleReceipt
from postroad.queues import AckResult, Delivery, Queue

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


MOST = 10
LATEST_SECONDS = 0.05
_ATTEMPTS = 3


@dataclass(slots=True)
class _Waiting:
    queue: Queue
    delivery: Delivery
    attempts: int = 0


class Acks:
    """Acks what was handled. What fails is tried again, then reported: deduplication covers the redelivery."""

    def __init__(self, clock: Clock, failed: Failed) -> None:
        self._monotonic = clock.monotonic
        self._tell = failed
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._first_at: float | None = None
        self.wake: Callable[[], None] = lambda: None

    def add(self, queue: Queue, delivery: Delivery) -> None:
        """Ack it soon."""
        with self._lock:
            self._waiting.append(_Waiting(queue, delivery))
            first = self._first_at is None
            if first:
                self._first_at = self._monotonic()
            full = len(self._waiting) >= MOST
        if full:
            self.flush()
        elif first:
            self.wake()

    def due(self) -> float | None:
        """When the first of the waiting has waited long enough."""
        first_at = self._first_at
        return None if first_at is None else first_at + LATEST_SECONDS

    def run(self) -> None:
        """Ack all that waits."""
        self.flush()

    def flush(self) -> None:
        """Ack all that waits, now."""
        with self._lock:
            batch, self._waiting, self._first_at = self._waiting, [], None
        for queue in {id(each.queue): each.queue for each in batch}.values():
            self._ack(queue, [each for each in batch if each.queue is queue])

    def _ack(self, queue: Queue, batch: Sequence[_Waiting]) -> None:
        results = _results(queue, [each.delivery for each in batch])
        again = []
        for each, result in zip(batch, results, strict=True):
            each.attempts += 1
            if result.ok:
                continue
            if each.attempts < _ATTEMPTS and not isinstance(result.error, StaleReceipt):
                again.append(each)
            else:
                self._tell(each.delivery, result.error or StaleReceipt("the message was not acked"))
        if again:
            with self._lock:
                self._waiting += again
                self._first_at = self._first_at or self._monotonic()
            self.wake()


def _results(queue: Queue, deliveries: Sequence[Delivery]) -> list[AckResult]:
    try:
        return queue.ack(deliveries)
    except PostroadError as error:
        return [AckResult(ok=False, error=error) for _ in deliveries]


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
