"""What a consumer tells: log lines, metrics, handler times and reports."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import PostroadError
from postroad.events import DomainEvent
from postroad.queues import Delivery, Queue
from postroad.telemetry import counter, gauge, get_logger, histogram

if TYPE_CHECKING:
    from prometheus_client import Gauge, Histogram
    from prometheus_client.metrics_core import Metric


_standard = logging.getLogger("postroad.inbox")
_LINES = {
    "ack_failed": "consumer_ack_failed",
    "heartbeat_failed": "consumer_heartbeat_failed",
    "chore_failed": "consumer_chore_failed",
    "receive_failed": "consumer_paused",
    "settle_failed": "consumer_paused",
    "stop_timed_out": "consumer_stop_timed_out",
}
"""The line of each thing that goes wrong around a message."""


def tell_conflict(consumer: str, event_id: str) -> None:
    """Count and write down that a known event id came with another content."""
    counter("event_inbox_conflicts").labels(consumer).inc()
    get_logger("inbox").warning("inbox_conflict", consumer=consumer, event_id=event_id)


class _InHandling:
    """The events that are being handled by all consumers of one service and queue in this process."""

    def __init__(self) -> None:
        self._since: dict[object, datetime] = {}

    @contextmanager
    def held(self, event: DomainEvent) -> Iterator[None]:
        """Count the event among those in handling."""
        token = object()
        self._since[token] = event.occurred_at
        try:
            yield
        finally:
            del self._since[token]

    def lag(self) -> float:
        """The age of the oldest event in handling, in seconds; 0 when there is none."""
        oldest = min(self._since.copy().values(), default=None)
        return 0.0 if oldest is None else max(0.0, (SYSTEM_CLOCK.now() - oldest).total_seconds())


@cache
def _in_handling(service: str, queue: str) -> _InHandling:
    """Made once for each pair of labels, with its gauge, which is read when somebody looks."""
    made = _InHandling()
    gauge("event_consumer_lag_seconds").labels(service, queue).set_function(made.lag)
    return made


class ConsumerTelemetry:
    """Speaks for one consumer."""

    def __init__(self, consumer: str, queue: str, service: str) -> None:
        self._names = {"consumer": consumer, "queue": queue}
        self._labels = (service, queue)

    def observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        """Write the line of what the receiver did with a message."""
        log, event = get_logger("inbox"), fields.get("about")
        about = self._about(delivery, event if isinstance(event, DomainEvent) else None)
        if what == "acked":
            if _standard.isEnabledFor(logging.INFO):
                log.info("consumer_settled", outcome=fields["label"] or "handled", **about)
        elif what == "retried" and fields["label"] != "released":
            after, attempt = fields["after"], fields["attempt"]
            log.warning("consumer_retried", error=fields["error"], attempt=attempt, retry_in_seconds=after, **about)
        elif what == "rejected":
            reason, attempt = fields["reason"], fields["attempt"]
            log.warning("consumer_dead_lettered", reason=reason, error=fields["error"], attempt=attempt, **about)
        elif what == "released":
            log.info("consumer_released", messages=len(fields["deliveries"]), **about)
        elif what in _LINES:
            log.warning(_LINES[what], **({"error": str(fields["error"])} if "error" in fields else {}), **about)

    def prune_failed(self, error: Exception) -> None:
        """The inbox could not be pruned; it is tried again in a minute."""
        get_logger("inbox").warning("consumer_prune_failed", error=str(error), **self._names)

    def visibility_too_short(self, advice: str) -> None:
        """The queue hides messages for less than twice the time that handlers need."""
        get_logger("inbox").warning("visibility_too_short", advice=advice, **self._names)

    def handling(self, event: DomainEvent) -> AbstractContextManager[None]:
        """Show the age of the event for as long as it is being handled, unless another one is older."""
        return self._in_handling.held(event)

    def begin(self) -> None:
        """Show that there is a consumer, though it handles nothing yet: alarms go off when there is none."""
        _ = self._in_handling

    def collect(self) -> Iterator[Metric]:
        """The metrics of this consumer, and of others with the same service and queue."""
        mine = dict(zip(("service", "queue"), self._labels, strict=True))
        of_consumers = gauge("event_consumer_lag_seconds"), gauge("dead_letter_count")
        for source in (*of_consumers, histogram("postroad_handler_seconds")):
            for metric in source.collect():
                metric.samples = [sample for sample in metric.samples if mine.items() <= sample.labels.items()]
                yield metric

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

    def _about(self, delivery: Delivery | None, event: DomainEvent | None) -> dict[str, Any]:
        about: dict[str, Any] = dict(self._names)
        if delivery is not None:
            about |= {"message_id": delivery.message_id, "receives": delivery.receive_count}
        return about if event is None else {**about, "event_id": str(event.event_id), "type": event.type}

    @cached_property
    def _in_handling(self) -> _InHandling:
        return _in_handling(*self._labels)

    @cached_property
    def _dead_letters(self) -> Gauge:
        return gauge("dead_letter_count").labels(*self._labels)

    @cached_property
    def _handler_seconds(self) -> Histogram:
        return histogram("postroad_handler_seconds").labels(*self._labels)


CALLS = 50
_REMEMBERED = 1_000
TOO_SHORT = "visibility_too_short"


class Timing:
    """The latest calls of one handler."""

    def __init__(self, queue: str, visibility: float) -> None:
        self._queue = queue
        self._visibility = visibility
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._calls = 0
        self.advice: Mapping[str, str] = {}

    def add(self, seconds: float) -> bool:
        """Remember one call; says whether there is new advice. It is thought over after every fifty calls."""
        with self._lock:
            self._seconds.append(seconds)
            self._calls += 1
            if self._calls % CALLS:
                return False
            advised = bool(self.advice)
            self.advice = advise(self._queue, self._visibility, p99(self._seconds))
            return bool(self.advice) and not advised


def p99(seconds: deque[float]) -> float:
    """The time within which ninety-nine of a hundred calls ended."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)]


def advise(queue: str, visibility: float, slow: float) -> Mapping[str, str]:
    """What to change, by the name of the warning."""
    if visibility >= 2 * slow:
        return {}
    return {
        TOO_SHORT: f"queue {queue!r} hides messages for {visibility:g} s, below twice the handler's p99 of {slow:.3g} s"
        f"; set its visibility to {2 * slow:.3g} s or more"
    }


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What became of the messages of one `run_once`."""

    received: int = 0
    handled: int = 0
    duplicates: int = 0
    failed: int = 0
    released: int = 0
    """Given back unhandled: behind a failed one of their group, held by somebody else, or at a stop."""
    dead: int = 0
    ignored: int = 0
