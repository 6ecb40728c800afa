"""What consumers tell: one log line for each thing that happens to a message, its metrics, and never its payload."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from postroad.errors import PostroadError
from postroad.events import DomainEvent
from postroad.queues import Delivery, Queue
from postroad.telemetry import get_logger
from postroad.telemetry.metrics import counter, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import Gauge, Histogram

_standard = logging.getLogger("postroad.inbox")


def tell_conflict(consumer: str, event_id: str) -> None:
    """Count and write down that a known event id came with another content."""
    counter("event_inbox_conflicts").labels(consumer).inc()
    get_logger("inbox").warning("inbox_conflict", consumer=consumer, event_id=event_id)


class Teller:
    """Speaks for one consumer."""

    def __init__(self, consumer: str, queue: str, service: str) -> None:
        self._names = {"consumer": consumer, "queue": queue}
        self._labels = (service, queue)

    def settled(self, outcome: str, delivery: Delivery, event: DomainEvent | None) -> None:
        """A message was handled, was a duplicate, or was of a type that nobody here wants."""
        if _standard.isEnabledFor(logging.INFO):
            get_logger("inbox").info("consumer_settled", outcome=outcome, **self._about(delivery, event))

    def retried(self, delivery: Delivery, error: str | None, after: float) -> None:
        """A message failed and comes again."""
        about = self._about(delivery, None)
        get_logger("inbox").warning("consumer_retried", error=error, after_seconds=after, **about)

    def released(self, deliveries: list[Delivery]) -> None:
        """Messages were given back without being handled."""
        if deliveries and _standard.isEnabledFor(logging.INFO):
            get_logger("inbox").info("consumer_released", messages=len(deliveries), **self._names)

    def dead_lettered(self, delivery: Delivery, reason: str, error: str) -> None:
        """A message went to the dead letters."""
        about = self._about(delivery, None)
        get_logger("inbox").warning("consumer_dead_lettered", reason=reason, error=error, **about)

    def ack_failed(self, delivery: Delivery, error: Exception) -> None:
        """A handled message could not be acked; it comes again as a duplicate."""
        get_logger("inbox").warning("consumer_ack_failed", error=str(error), **self._about(delivery, None))

    def heartbeat_failed(self, delivery: Delivery, error: Exception) -> None:
        """The lease of a message could not be extended."""
        get_logger("inbox").warning("consumer_heartbeat_failed", error=str(error), **self._about(delivery, None))

    def chore_failed(self, error: Exception) -> None:
        """A lease of an effect could not be renewed."""
        get_logger("inbox").warning("consumer_chore_failed", error=str(error), **self._names)

    def prune_failed(self, error: Exception) -> None:
        """The inbox could not be pruned; it is tried again in a minute."""
        get_logger("inbox").warning("consumer_prune_failed", error=str(error), **self._names)

    def paused(self, error: Exception) -> None:
        """Nothing is received for a while, because queue or database cannot be reached."""
        get_logger("inbox").warning("consumer_paused", error=str(error), **self._names)

    def stop_timed_out(self) -> None:
        """A handler still ran when the time for stopping was over."""
        get_logger("inbox").warning("consumer_stop_timed_out", **self._names)

    def visibility_too_short(self, advice: str) -> None:
        """The queue hides messages for less than twice the time that handlers need."""
        get_logger("inbox").warning("visibility_too_short", advice=advice, **self._names)

    def handling(self, event: DomainEvent, now: datetime) -> None:
        """Show how old the event is that is being handled."""
        self._lag.set(max(0.0, (now - event.occurred_at).total_seconds()))

    def idle(self) -> None:
        """Show that nothing is being handled."""
        self._lag.set(0.0)

    def took(self, seconds: float) -> None:
        """Count one call of the handler."""
        self._handler_seconds.observe(seconds)

    def count_dead_letters(self, letters: Queue) -> None:
        """Show how many dead letters there are, where that can be asked."""
        try:
            stats = letters.stats()
        except PostroadError:
            return
        self._dead_letters.set(stats.visible + stats.in_flight + stats.delayed)

    def _about(self, delivery: Delivery, event: DomainEvent | None) -> dict[str, Any]:
        known = {} if event is None else {"event_id": str(event.event_id), "type": event.type}
        return {**self._names, "message_id": delivery.message_id, "receives": delivery.receive_count, **known}

    @cached_property
    def _lag(self) -> Gauge:
        return gauge("event_consumer_lag_seconds").labels(*self._labels)

    @cached_property
    def _dead_letters(self) -> Gauge:
        return gauge("dead_letter_count").labels(*self._labels)

    @cached_property
    def _handler_seconds(self) -> Histogram:
        return histogram("postroad_handler_seconds").labels(*self._labels)
