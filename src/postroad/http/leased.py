"""What this server has leased from queues whose messages it must have in hand to reject them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from postroad.errors import NotSupported
from postroad.queues import AckResult, Delivery, Queue

MAX_DELIVERIES: Final = 1_000
MAX_BYTES: Final = 32 * 1_048_576


class LeasedMessages:
    """Deliveries by their receipts, the newest only.

    A store such as SQS rejects by sending a copy to the dead letters, and a caller gives no more than the receipt.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deliveries: dict[str, Delivery] = {}
        self._bytes = 0

    def remember(self, queue: Queue, leased: Sequence[Delivery]) -> None:
        """Keep what was leased from the queue, unless its receipts alone are enough."""
        if queue.traits.atomic_reject:
            return
        with self._lock:
            for delivery in leased:
                self._deliveries[delivery.receipt] = delivery
                self._bytes += len(delivery.body)
            while len(self._deliveries) > MAX_DELIVERIES or self._bytes > MAX_BYTES:
                oldest = self._deliveries.pop(next(iter(self._deliveries)))
                self._bytes -= len(oldest.body)

    def reject(self, queue: Queue, held: Sequence[Delivery], *, reason: str, error: str | None) -> list[AckResult]:
        """Send the messages of these receipts to the dead letters; one that is not remembered stays where it is."""
        if queue.traits.atomic_reject:
            return queue.reject(held, reason=reason, error=error)
        with self._lock:
            known = {each.receipt: self._deliveries[each.receipt] for each in held if each.receipt in self._deliveries}
        results = queue.reject(list(known.values()), reason=reason, error=error)
        by_receipt = dict(zip(known, results, strict=True))
        return [by_receipt.get(each.receipt) or AckResult(False, _unknown()) for each in held]


def _unknown() -> NotSupported:
    return NotSupported(
        "this server no longer has the message of the receipt, and the store cannot reject it without",
        remedy="Release it with the error, or reject it soon after the lease, through the server that leased it.",
    )
