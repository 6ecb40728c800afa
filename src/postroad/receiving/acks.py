"""Acks in batches: up to ten together, at the latest fifty milliseconds after the first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from postroad.clock import Clock
from postroad.errors import PostroadError, StaleReceipt
from postroad.queues import AckResult, Delivery, Queue
from postroad.receiving.leases import Failed

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
