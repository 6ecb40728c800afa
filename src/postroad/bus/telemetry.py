"""The telemetry of a bus: log lines, metrics and health, and never a payload."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from postroad.events import Envelope
from postroad.queues import Delivery
from postroad.receiving import BreakerState
from postroad.telemetry import get_logger, tracing

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

_standard = logging.getLogger("postroad.bus")
_logger = cache(get_logger)
# The log line and the counter of health, by the label of an outcome, else by what the receiver did with the message.
_LABELS: dict[str | None, tuple[str, str | None]] = {
    "echo": ("bus_echo", None),
    "duplicate": ("bus_duplicate", "duplicates"),
    "unhandled": ("bus_unhandled", "unhandled"),
}
_OUTCOMES: dict[tuple[str, str | None], tuple[str | None, str | None]] = {
    ("acked", None): ("bus_handled", "handled"),
    ("retried", None): ("bus_retried", "failed"),
    ("retried", "invalid"): ("bus_retried", "failed"),
    ("rejected", None): (None, "failed"),
}
_FAILURES = frozenset({"bus_ack_failed", "bus_heartbeat_failed", "bus_receive_failed", "bus_chore_failed"})
_WARNINGS = _FAILURES.union(
    ("bus_publish_failed", "bus_retried", "bus_dead_lettered", "bus_gap", "bus_unhandled", "bus_lease_lost"),
    ("bus_stop_timed_out", "bus_no_receivers", "bus_handler_failed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusHealth:
    """The state of a bus at one moment. The counters start at 0 when the bus is made.

    Attributes:
        publish_breaker: The state of the breaker around sends.
        receive_breaker: The state of the breaker around receives.
        handled: Events that all handlers handled.
        failed: Attempts that failed.
        duplicates: Copies that were recognised.
        unhandled: Events without a handler.
        dead_lettered: Events moved to the dead letters.
    """

    running: bool
    """Whether its receiver runs."""
    in_flight: int
    """How many messages it holds."""
    publish_breaker: BreakerState
    receive_breaker: BreakerState
    last_error: str | None
    """The error of the transport while it fails, else the last error of a handler."""
    handled: int
    failed: int
    duplicates: int
    unhandled: int
    dead_lettered: int
    gaps: int
    """How often its own queue was removed and made again: events between were lost."""


class BusTelemetry:
    """Counts and logs what happens on one bus."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._counter, self._logger = tracing.counter("postroad_bus_events_total"), _logger("bus")
        self._outcomes: dict[str, Counter] = {}
        self._again_at: dict[tuple[str, str], float] = {}
        self.queue = bus
        """The queue that it received from last; before the first receive that of the group, or the topic."""
        self._timings: dict[str, Histogram] = {}
        self.unhandled_remedy: str | None = None
        """How to keep types that no handler takes from coming, if the bus cannot do it by itself."""
        self._lock = threading.Lock()
        names = ("handled", "failed", "duplicates", "unhandled", "dead_lettered", "gaps")
        self._counts: dict[str, int] = dict.fromkeys(names, 0)
        self._transport_error: str | None = None
        self.handler_error: str | None = None
        """The last error of a handler."""

    def log(self, event: str, envelope: Envelope | None = None, *, expected: bool = False, **fields: Any) -> None:
        """Count the outcome and log its line, as a warning unless it is expected here."""
        count = self._outcomes.get(event) or self._outcomes.setdefault(
            event, self._counter.labels(self._bus, event.removeprefix("bus_"))
        )
        count.inc()
        level = logging.WARNING if event in _WARNINGS and not expected else logging.INFO
        if not _standard.isEnabledFor(level):
            return
        if envelope is not None:
            fields |= {
                "event_id": str(envelope.event_id),
                "type": envelope.event_type,
                "publisher": envelope.publisher_id,
                "trace_id": tracing.trace_id(envelope.traceparent),
            }
        fields = {name: value for name, value in fields.items() if value is not None}
        self._logger.log(level, event, bus=self._bus, **fields)

    def timed(self, handler: str, seconds: float) -> None:
        timing = self._timings.get(handler)
        if timing is None:
            timing = tracing.histogram("postroad_handler_seconds").labels(self._bus, self.queue, handler)
            self._timings[handler] = timing
        timing.observe(seconds)

    def is_due(self, event: str, about: str = "") -> bool:
        """Return True at most once a minute for each event and subject.

        Subjects such as types come from other processes, so only a limited number of them is remembered.
        """
        now = time.monotonic()
        if now < self._again_at.get((event, about), 0.0):
            return False
        if len(self._again_at) >= 1_000:
            self._again_at.clear()
        self._again_at[event, about] = now + 60.0
        return True

    def observe(
        self, what: str, delivery: Delivery | None, envelope: Envelope | None, handler: str | None = None, **fields: Any
    ) -> None:
        """Count and log what the receiver did with a message; most of what it does has no line."""
        if what == "received":
            self.queue = fields["queue"]
        line = self._count(what, fields.get("label"), fields.get("error"))
        about: dict[str, Any] = {} if delivery is None else {"message_id": delivery.message_id}
        failure: dict[str, Any] = {}
        if what in ("retried", "rejected"):
            failure = {"error": fields["error"], "attempt": fields["attempt"], "handler": handler}
            failure["retry_in_seconds"] = fields.get("after")
            failure |= {"queue": fields.get("queue"), "duration_ms": fields.get("duration_ms")}
        elif what == "deferred":
            failure = {"retry_in_seconds": fields.get("after"), "queue": self.queue}
        if line is not None:
            remedy = self.unhandled_remedy if line == "bus_unhandled" and what != "acked" else None
            if remedy is not None and envelope is not None and self.is_due(line, envelope.event_type):
                failure["remedy"] = remedy
            self.log(line, envelope, expected=what == "acked", **failure)
        if what == "rejected":
            self.log("bus_dead_lettered", envelope, reason=fields["reason"], **failure, **about)
        elif what == "lease_lost":
            self.log("bus_lease_lost", envelope, **about)
        elif (failed := f"bus_{what}") in _FAILURES:
            self.log(failed, error=str(fields["error"]), **about)
        elif what == "stop_timed_out":
            self.log("bus_stop_timed_out")

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _count(self, what: str, label: str | None, error: object) -> str | None:
        """Count what the receiver did, and return its log line, if any."""
        line, counter = _LABELS.get(label) or _OUTCOMES.get((what, label), (None, None))
        if counter is not None:
            self.count(counter)
        if what == "rejected":
            self.count("dead_lettered")
        elif what == "lease_lost":
            self.count("failed")
        elif what in ("receive_failed", "settle_failed"):
            self._transport_error = str(error)
        elif what == "polled":
            self._transport_error = None
        if what in ("retried", "rejected") and label is None and error is not None:
            self.handler_error = str(error)
        return line

    def health(self) -> dict[str, Any]:
        """Return the counters of health, and the error of the transport while it fails, else that of a handler."""
        with self._lock:
            return {**self._counts, "last_error": self._transport_error or self.handler_error}
