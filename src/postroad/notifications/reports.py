"""What the chat pipeline tells: log lines and counts of hashes, ids and outcomes, never of tokens or texts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from postroad.errors import describe
from postroad.notifications.devices import Platform, TokenResult, user_hash
from postroad.notifications.store import Pruned
from postroad.queues import Delivery
from postroad.telemetry import counter, get_logger

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
            "notification_pushed",
            push_id=push_id,
            provider=platform,
            outcome=result.outcome,
            status=result.status,
            reason=result.reason,
        )


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


_FAILURES = {
    "ack_failed": "notification_settle_failed",
    "heartbeat_failed": "notification_settle_failed",
    "settle_failed": "notification_settle_failed",
    "chore_failed": "notification_chore_failed",
    "receive_failed": "notification_paused",
}
"""The line of each thing that goes wrong around a message."""


class EventLog:
    """Speaks for the consumer of one queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        """Count what the receiver did with a message, and write its line."""
        about = {"queue": self._queue} if delivery is None else self._about(delivery)
        if what == "acked":
            self._count(fields["label"])
            if _standard.isEnabledFor(logging.INFO):
                _log.info("notification_settled", outcome=fields["label"], **about)
        elif what == "retried":
            self._count("retried")
            _log.warning(
                "notification_retried", error=fields["error"], after_seconds=round(fields["after"], 3), **about
            )
        elif what == "deferred":
            self._count("deferred")
            _log.info("notification_deferred", after_seconds=round(fields["after"], 3), **about)
        elif what == "rejected":
            self._count("dead_lettered")
            _log.warning("notification_dead_lettered", reason=fields["reason"], error=fields["error"], **about)
        elif what == "released":
            for each in fields["deliveries"]:
                _log.info("notification_released", **self._about(each))
        elif what == "stop_timed_out":
            _log.warning("notification_stop_timed_out", messages=fields["messages"], **about)
        elif what in _FAILURES:
            _log.warning(_FAILURES[what], error=describe(fields["error"]), **about)

    def _count(self, outcome: str) -> None:
        counter("notifications").labels(self._queue, outcome).inc()

    def _about(self, delivery: Delivery) -> dict[str, object]:
        return {"queue": self._queue, "message_id": delivery.message_id, "receives": delivery.receive_count}


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Messages stored and pushes relayed, devices reached and dropped, and messages that were not done."""

    stored: int = 0
    duplicates: int = 0
    relayed: int = 0
    """Pushes that went from the outbox to the queue."""
    sent: int = 0
    """Devices that got a push."""
    dropped: int = 0
    """Devices that are dead."""
    retried: int = 0
    deferred: int = 0
    dead_lettered: int = 0
