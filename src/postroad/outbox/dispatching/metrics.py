"""What a dispatcher tells: a log line for each thing that happens to a row, and figures for Prometheus."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

from postroad.errors import PostroadError
from postroad.outbox.dispatching.messages import Gauges, Settlement
from postroad.telemetry import gauge, get_logger, histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


_standard = logging.getLogger("postroad.outbox")
_WARNINGS = frozenset(
    {
        *("outbox_retried", "outbox_failed", "outbox_stale", "outbox_target_unavailable", "outbox_database_lost"),
        *("outbox_listen_unavailable", "outbox_stop_timed_out", "outbox_prune_refused"),
    }
)
_OF_ROWS = {"sent": "outbox_published", "retried": "outbox_retried", "failed": "outbox_failed"}


class EventLog:
    """Speaks for one dispatcher."""

    def __init__(self, dispatcher: str) -> None:
        self._dispatcher = dispatcher

    def tell(self, event: str, **fields: Any) -> None:
        """Write one line."""
        level = logging.WARNING if event in _WARNINGS else logging.INFO
        if _standard.isEnabledFor(level):
            _logger().log(level, event, dispatcher=self._dispatcher, **fields)

    def tell_row(self, settlement: Settlement) -> None:
        """Write the line of a row that was settled; one that only went back has none."""
        event = _OF_ROWS.get(settlement.kind)
        if event is None or not _standard.isEnabledFor(logging.WARNING if event in _WARNINGS else logging.INFO):
            return
        row = settlement.row
        fields = {"row": row.id, "seq": row.seq, "attempt": max(row.attempts, 0) + 1, "redrives": row.redrives}
        if settlement.error is not None:
            fields["error"] = settlement.error
        self.tell(event, **fields)


@cache
def _logger() -> Any:
    return get_logger("outbox")


_FRESH_SECONDS = 0.05
_LABELS: dict[str, dict[str, str]] = {
    "event_outbox_backlog": {},
    "event_publish_lag_seconds": {},
    "dead_letter_count": {"queue": ""},
}


class OutboxMetrics:
    """The gauges and the histogram of one service. The gauges end with this object."""

    def __init__(self, service: str, count: Callable[[], Gauges], registry: CollectorRegistry | None) -> None:
        self._count = count
        self._counted: tuple[float, Gauges] | None = None
        self.observe: Callable[[float], None] = (
            histogram("postroad_publish_seconds", registry).labels(service=service).observe
        )
        mine = ref(self)
        for place, (name, labels) in enumerate(_LABELS.items()):
            gauge(name, registry).labels(service=service, **labels).set_function(_asking(mine, place))

    def figure(self, place: int) -> float:
        """One of the gauges; all of one look come from one query. NaN when the database does not answer."""
        now = time.monotonic()
        if self._counted is None or now - self._counted[0] > _FRESH_SECONDS:
            try:
                self._counted = now, self._count()
            except PostroadError:
                return math.nan
        return float(self._counted[1][place])


def _asking(mine: Any, place: int) -> Callable[[], float]:
    def ask() -> float:
        metrics: OutboxMetrics | None = mine()
        return math.nan if metrics is None else metrics.figure(place)

    return ask
