"""What a bus tells: log lines, counts and health, and never a payload."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from postroad.events import Envelope
from postroad.queues import Delivery
from postroad.receiving import BreakerState
from postroad.telemetry import get_logger, redact

if TYPE_CHECKING:
    from prometheus_client import Counter


_standard = logging.getLogger("postroad.bus")
_making = threading.Lock()
_MINUTE = 60.0
_MOST_REMEMBERED = 1_000
_WARNINGS = frozenset(
    {
        *("bus_publish_failed", "bus_retried", "bus_dead_lettered", "bus_gap", "bus_unhandled", "bus_lease_lost"),
        *(
            "bus_ack_failed",
            "bus_heartbeat_failed",
            "bus_receive_failed",
            "bus_chore_failed",
            "bus_stop_timed_out",
            "bus_no_receivers",
        ),
    }
)


_LINES = {
    ("acked", None): "bus_handled",
    ("acked", "echo"): "bus_echo",
    ("acked", "duplicate"): "bus_duplicate",
    ("acked", "unhandled"): "bus_unhandled",
    ("retried", None): "bus_retried",
    ("retried", "invalid"): "bus_retried",
    ("retried", "echo"): "bus_echo",
    ("retried", "duplicate"): "bus_duplicate",
    ("retried", "unhandled"): "bus_unhandled",
    ("rejected", "unhandled"): "bus_unhandled",
}
_FAILURES = {
    "ack_failed": "bus_ack_failed",
    "heartbeat_failed": "bus_heartbeat_failed",
    "receive_failed": "bus_receive_failed",
    "chore_failed": "bus_chore_failed",
}


class BusTelemetry:
    """Speaks for one bus."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._counter, self._logger = _counter(), _logger()
        self._counts: dict[str, Counter] = {}
        self._again_at: dict[tuple[str, str], float] = {}
        self.unhandled_remedy: str | None = None
        """What keeps types that nobody handles from coming, where the bus cannot see to it by itself."""

    def tell(self, event: str, envelope: Envelope | None = None, *, in_order: bool = False, **fields: Any) -> None:
        """Count the outcome and write its line, as a warning unless it is in order here."""
        count = self._counts.get(event) or self._counts.setdefault(
            event, self._counter.labels(self._bus, event.removeprefix("bus_"))
        )
        count.inc()
        level = logging.WARNING if event in _WARNINGS and not in_order else logging.INFO
        if not _standard.isEnabledFor(level):
            return
        if envelope is not None:
            fields |= {
                "event_id": str(envelope.event_id),
                "type": envelope.event_type,
                "publisher": envelope.publisher_id,
            }
        self._logger.log(level, event, bus=self._bus, **fields)

    def tell_at_times(self, event: str, about: str = "", **fields: Any) -> None:
        """Write a line at most once a minute for each thing that it is about."""
        if self._is_due(event, about):
            self.tell(event, **fields)

    def _is_due(self, event: str, about: str) -> bool:
        """Whether it was not told for a minute; types come from elsewhere, so not all of them are remembered."""
        now = time.monotonic()
        if now < self._again_at.get((event, about), 0.0):
            return False
        if len(self._again_at) >= _MOST_REMEMBERED:
            self._again_at.clear()
        self._again_at[event, about] = now + _MINUTE
        return True

    def traceback(self, error: Exception) -> None:
        """Write the traceback of a handler's failure, for those who look closely."""
        if _standard.isEnabledFor(logging.DEBUG):
            lines = redact("".join(traceback.format_exception(error)))
            self._logger.debug("bus_handler_traceback", bus=self._bus, traceback=lines)

    def _unhandled(self, event_type: str) -> dict[str, str]:
        """The remedy, once a minute for each type."""
        remedy = self.unhandled_remedy
        return {} if remedy is None or not self._is_due("bus_unhandled", event_type) else {"remedy": remedy}

    def observe(
        self,
        what: str,
        delivery: Delivery | None,
        envelope: Envelope | None,
        handler: str | None = None,
        **fields: Any,
    ) -> None:
        """Write the line of what the receiver did with a message; most of what it does has none."""
        label = fields.get("label")
        about: dict[str, Any] = {} if delivery is None else {"message_id": delivery.message_id}
        failure: dict[str, Any] = {}
        if what in ("retried", "rejected"):
            failure = {"error": fields["error"], "attempt": fields["attempt"], "handler": handler}
        if what == "retried":
            failure["retry_in_seconds"] = fields["after"]
        failure = {name: value for name, value in failure.items() if value is not None}
        if (line := _LINES.get((what, label))) is not None:
            if line == "bus_unhandled" and what != "acked" and envelope is not None:
                failure |= self._unhandled(envelope.event_type)
            self.tell(line, envelope, in_order=what == "acked", **failure)
        if what == "rejected":
            self.tell("bus_dead_lettered", envelope, reason=fields["reason"], **failure, **about)
        elif what == "lease_lost":
            self.tell("bus_lease_lost", envelope, **about)
        elif what in _FAILURES:
            self.tell(_FAILURES[what], error=str(fields["error"]), **about)
        elif what == "stop_timed_out":
            self.tell("bus_stop_timed_out")


@cache
def _logger() -> Any:
    return get_logger("bus")


def _counter() -> Counter:
    # Two threads that both find the cache empty would both register the metric, and the second is refused.
    with _making:
        return _made_counter()


@cache
def _made_counter() -> Counter:
    from prometheus_client import Counter

    return Counter("postroad_bus_events_total", "What became of the events of a bus.", ["bus", "outcome"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BusHealth:
    """One look at a bus."""

    running: bool
    in_flight: int
    publish_breaker: BreakerState
    receive_breaker: BreakerState
    last_error: str | None
    handled: int
    failed: int
    duplicates: int
    unhandled: int
    dead_lettered: int
    gaps: int


_COUNTED = {
    ("acked", None): "handled",
    ("acked", "duplicate"): "duplicates",
    ("acked", "unhandled"): "unhandled",
    ("retried", None): "failed",
    ("retried", "invalid"): "failed",
    ("retried", "duplicate"): "duplicates",
    ("retried", "unhandled"): "unhandled",
    ("rejected", None): "failed",
    ("rejected", "unhandled"): "unhandled",
}


class HealthCounts:
    """What the health of a bus counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(
            ("handled", "failed", "duplicates", "unhandled", "dead_lettered", "gaps"), 0
        )
        self._transport_error: str | None = None
        self._handler_error: str | None = None

    def add(self, name: str) -> None:
        """Count one more."""
        with self._lock:
            self._counts[name] += 1

    def observe(self, what: str, *, label: str | None = None, error: object = None, **_: object) -> None:
        """Count what the receiver did with a message."""
        if what in ("acked", "retried", "rejected") and (counted := _COUNTED.get((what, label))) is not None:
            self.add(counted)
        if what == "rejected":
            self.add("dead_lettered")
        elif what == "lease_lost":
            self.add("failed")
        elif what in ("receive_failed", "settle_failed"):
            self._transport_error = str(error)
        elif what == "polled":
            self._transport_error = None
        if what in ("retried", "rejected") and label is None and error is not None:
            self._handler_error = str(error)

    @property
    def last_error(self) -> str | None:
        """What went wrong last: the transport, for as long as it does, else a handler."""
        return self._transport_error or self._handler_error

    def counts(self) -> dict[str, int]:
        """All counts as they are now."""
        with self._lock:
            return dict(self._counts)
