"""The receiver of a worker: it fetches as many messages as there are free lanes, and never more."""

from __future__ import annotations

import queue as queues
import threading
from collections.abc import Sequence

from postroad.backoff import Backoff
from postroad.errors import PostroadError
from postroad.queues import Delivery
from postroad.tasks.shop import Shop
from postroad.tasks.telling import tell

# How long a wait may be where waiting costs nothing, so that a stop is noticed soon.
_SLICE_SECONDS = 0.5
_SHORT_POLL_SECONDS = 0.2
_SHORT_LONG_POLL_SECONDS = 1.0
_MOST_AT_ONCE = 10
# The numbers of SQS are approximate: one look may miss a message that the next one sees.
_LOOKS_BEFORE_IDLE = 2


class Receiver:
    """Hands messages to lanes through `work` until it is stopped or, if so asked, finds nothing left to do."""

    def __init__(self, shop: Shop, *, until_idle: bool) -> None:
        self._shop = shop
        self._until_idle = until_idle
        self._free = threading.Semaphore(shop.config.concurrency)
        self._lock = threading.Lock()
        self._busy = 0
        self.stopping = shop.stopping
        self.work: queues.SimpleQueue[Delivery | None] = queues.SimpleQueue()

    def run(self) -> None:
        """Receive until stopped or idle."""
        backoff, empty = Backoff(), 0
        while not self.stopping.is_set():
            wanted = self._claim_lanes()
            deliveries: Sequence[Delivery] = ()
            try:
                if wanted:
                    deliveries = self._shop.queue.receive(
                        max_messages=wanted, wait=self._wait(), visibility=self._shop.config.visibility
                    )
                empty = 0 if deliveries or not self._looks_idle(wanted) else empty + 1
            except Exception as error:
                # Whatever it was, the worker must not fall silent: it may not happen the next time.
                if not backoff.failures:
                    tell("task_receive_failed", error=f"{type(error).__name__}: {error}")
                self.stopping.wait(backoff.next(self._shop.chance()))
            else:
                if backoff.failures:
                    tell("task_receive_recovered", failures=backoff.failures)
                backoff.reset()
            self._hand_out(deliveries)
            self._free.release(wanted - len(deliveries)) if wanted > len(deliveries) else None
            if self._until_idle and empty >= _LOOKS_BEFORE_IDLE:
                return

    def done(self) -> None:
        """A lane is free again."""
        with self._lock:
            self._busy -= 1
        self._free.release()

    def stop(self) -> None:
        """Hand out nothing from now on."""
        with self._lock:
            self.stopping.set()

    def _claim_lanes(self) -> int:
        """As many free lanes as one receive may serve, at least one; 0 when none becomes free for a while."""
        if not self._free.acquire(timeout=_SLICE_SECONDS):
            return 0
        claimed = 1
        while claimed < _MOST_AT_ONCE and self._free.acquire(blocking=False):
            claimed += 1
        return claimed

    def _wait(self) -> float:
        short = self._shop.queue.traits.short_waits
        if self._until_idle:
            return min(self._shop.config.wait, _SHORT_POLL_SECONDS if short else _SHORT_LONG_POLL_SECONDS)
        return min(self._shop.config.wait, _SLICE_SECONDS) if short else self._shop.config.wait

    def _looks_idle(self, wanted: int) -> bool:
        """Whether no lane works and the queue holds nothing."""
        if not self._until_idle or not wanted or self._busy:
            return False
        stats = self._shop.queue.stats()
        return stats.visible + stats.in_flight + stats.delayed == 0

    def _hand_out(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not self.stopping.is_set():
                self._busy += len(deliveries)
                for delivery in deliveries:
                    self.work.put(delivery)
                return
        for delivery in deliveries:
            self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        try:
            self._shop.release(delivery)
        except PostroadError as error:
            tell("task_handling_failed", message_id=delivery.message_id, error=str(error))
