"""The figures of an outbox for Prometheus: counted when somebody looks, so that an idle dispatcher counts nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from postroad.errors import PostroadError
from postroad.outbox.dispatching.rows import Gauges
from postroad.telemetry.metrics import gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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
