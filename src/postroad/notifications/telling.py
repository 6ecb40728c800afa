"""What the chat pipeline tells: log lines and counts of hashes, ids and outcomes, never of tokens or texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from postroad.notifications.identity import user_hash
from postroad.notifications.platforms import Platform
from postroad.notifications.results import TokenResult
from postroad.notifications.store import Pruned
from postroad.queues import Delivery
from postroad.queues.burying import describe
from postroad.telemetry import get_logger
from postroad.telemetry.metrics import counter

_standard = logging.getLogger("postroad.notifications")
_log = get_logger("notifications")


def tell_conflict(user_id: str, message_id: str) -> None:
    """Count and write down that a stored message came again with another content."""
    counter("offline_conflicts").inc()
    _log.warning("notification_conflict", user=user_hash(user_id), message=user_hash(message_id))


def tell_nameless(error: Exception) -> None:
    """The name of a sender could not be found out; its id is shown instead."""
    _log.warning("notification_name_failed", error=type(error).__name__)


def tell_undelivered(user_id: str, error: Exception) -> None:
    """A message could not be delivered at once; it is queued."""
    _log.warning("notification_undelivered", user=user_hash(user_id), error=type(error).__name__)


def tell_result(push_id: str, platform: Platform, result: TokenResult) -> None:
    """A provider answered for one device."""
    counter("push_results").labels(platform, result.outcome).inc()
    if _standard.isEnabledFor(logging.INFO):
        _log.info(
            "notification_pushed", push_id=push_id, provider=platform, outcome=result.outcome, status=result.status,
            reason=result.reason,
        )  # fmt: skip


def tell_disabled(queue: str, why: str) -> None:
    """A consumer does not run."""
    _log.warning("notification_consumer_disabled", queue=queue, why=why)


def tell_pruned(pruned: Pruned) -> None:
    """Old messages, results and pushes were deleted."""
    if any(pruned):
        _log.info("notification_pruned", **pruned._asdict())


def tell_prune_failed(error: Exception) -> None:
    """What is old could not be deleted; it is tried again."""
    _log.warning("notification_prune_failed", error=describe(error))


class Teller:
    """Speaks for the consumer of one queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def settled(self, outcome: str, delivery: Delivery) -> None:
        """A message is done."""
        self._count(outcome)
        if _standard.isEnabledFor(logging.INFO):
            _log.info("notification_settled", outcome=outcome, **self._about(delivery))

    def retried(self, delivery: Delivery, error: str, after: float) -> None:
        """A message failed and comes again."""
        self._count("retried")
        _log.warning("notification_retried", error=error, after_seconds=round(after, 3), **self._about(delivery))

    def deferred(self, delivery: Delivery, after: float) -> None:
        """A message waits for its provider, as a copy that was never received."""
        self._count("deferred")
        _log.info("notification_deferred", after_seconds=round(after, 3), **self._about(delivery))

    def dead_lettered(self, delivery: Delivery, reason: str, error: str) -> None:
        """A message went to the dead letters."""
        self._count("dead_lettered")
        _log.warning("notification_dead_lettered", reason=reason, error=error, **self._about(delivery))

    def released(self, deliveries: Iterable[Delivery]) -> None:
        """Messages were given back because the worker stops."""
        for delivery in deliveries:
            _log.info("notification_released", **self._about(delivery))

    def settle_failed(self, delivery: Delivery, error: Exception) -> None:
        """The queue did not hear what became of a message, or its lease was lost; it may come again."""
        _log.warning("notification_settle_failed", error=describe(error), **self._about(delivery))

    def chore_failed(self, error: Exception) -> None:
        """Leases could not be extended."""
        _log.warning("notification_chore_failed", error=describe(error), queue=self._queue)

    def paused(self, error: Exception) -> None:
        """Nothing is received for a while, because queue or database cannot be reached."""
        _log.warning("notification_paused", error=describe(error), queue=self._queue)

    def stop_timed_out(self, messages: int) -> None:
        """Messages were given back that were still being handled when the time for stopping was over."""
        _log.warning("notification_stop_timed_out", messages=messages, queue=self._queue)

    def _count(self, outcome: str) -> None:
        counter("notifications").labels(self._queue, outcome).inc()

    def _about(self, delivery: Delivery) -> dict[str, object]:
        return {"queue": self._queue, "message_id": delivery.message_id, "receives": delivery.receive_count}
