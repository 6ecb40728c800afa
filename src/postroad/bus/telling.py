"""What a bus tells: one log line and one count for each thing that happens to an event, and never its payload."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from functools import cache
from typing import TYPE_CHECKING, Any

from postroad.events import Envelope
from postroad.queues import Delivery
from postroad.telemetry import get_logger
from postroad.telemetry.text import redact

if TYPE_CHECKING:
    from prometheus_client import Counter

_standard = logging.getLogger("postroad.bus")
_making = threading.Lock()
_MINUTE = 60.0
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


class Teller:
    """Speaks for one bus."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._counter, self._logger = _counter(), _logger()
        self._counts: dict[str, Counter] = {}
        self._again_at: dict[tuple[str, str], float] = {}

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
        now = time.monotonic()
        if now >= self._again_at.get((event, about), 0.0):
            self._again_at[event, about] = now + _MINUTE
            self.tell(event, **fields)

    def traceback(self, error: Exception) -> None:
        """Write the traceback of a handler's failure, for those who look closely."""
        if _standard.isEnabledFor(logging.DEBUG):
            lines = redact("".join(traceback.format_exception(error)))
            self._logger.debug("bus_handler_traceback", bus=self._bus, traceback=lines)

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
