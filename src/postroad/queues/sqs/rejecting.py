"""Rejecting on SQS: send to the dead letters, then delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from postroad.errors import NotSupported
from postroad.queues.markers import mark_dead
from postroad.queues.port import AckResult, Delivery, OutgoingMessage
from postroad.queues.sqs.wire import size_of

if TYPE_CHECKING:
    from postroad.queues.sqs.queue import SQSQueue

_LEASE = 60.0


def reject(queue: SQSQueue, deliveries: Sequence[Delivery], *, reason: str, error: str | None) -> list[AckResult]:
    """Bury each message whose lease still holds; what could not be sent is not deleted."""
    if queue.spec.dead_letter is None:
        raise NotSupported(
            f"queue {queue.name!r} has no dead-letter queue to reject into",
            remedy="Name one with QueueSpec(dead_letter=...), or ack the message.",
        )
    # Renewing the lease first tells a stale receipt before there is a copy, and leaves time for the two steps.
    results = queue.extend(deliveries, seconds=_LEASE)
    held = [index for index, result in enumerate(results) if result.ok]
    sent = _bury(queue, [deliveries[index] for index in held], reason, error)
    buried = [index for index, result in zip(held, sent, strict=True) if result.ok]
    for index, result in zip(held, sent, strict=True):
        results[index] = result
    for index, result in zip(buried, queue.ack([deliveries[index] for index in buried]), strict=True):
        results[index] = result
    return results


def _bury(queue: SQSQueue, deliveries: Sequence[Delivery], reason: str, error: str | None) -> list[AckResult]:
    if not deliveries:
        return []
    dead_letters = queue.sibling(str(queue.spec.dead_letter))
    limit = dead_letters.spec.max_message_bytes
    letters = [_letter(queue, delivery, reason, error, limit) for delivery in deliveries]
    return [AckResult(ok=result.ok, error=result.error) for result in dead_letters.send(letters)]


def _letter(queue: SQSQueue, delivery: Delivery, reason: str, error: str | None, limit: int) -> OutgoingMessage:
    marked = mark_dead(
        delivery.attributes,
        source=queue.name,
        receives=delivery.receive_count,
        error=error,
        at=queue.clock.now(),
        reason=reason,
    )
    fits = size_of(delivery.body, marked) <= limit
    # The same rejection, repeated after a crash, is recognised by its dedup id.
    dedup_id = f"{delivery.message_id}-{delivery.receive_count}" if queue.traits.fifo else None
    return OutgoingMessage(
        delivery.body, marked if fits else delivery.attributes, group=delivery.group, dedup_id=dedup_id
    )
