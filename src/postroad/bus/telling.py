"""What a bus tells: one log line and one count for each thing that happens to an event, and never its payload."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from postroad.events import Envelope
from postroad.queues import Delivery
from postroad.telemetry import get_logger

if TYPE_CHECKING:
    from prometheus_client import Counter

_standard = logging.getLogger("postroad.bus")
_making = threading.Lock()
_WARNINGS = frozenset(
    {
        *("bus_publish_failed", "bus_retried", "bus_dead_lettered", "bus_gap", "bus_unhandled", "bus_lease_lost"),
        *("bus_ack_failed", "bus_heartbeat_failed", "bus_receive_failed", "bus_stop_timed_out"),
    }
)


class Teller:
    """Speaks for one bus."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._counter, self._logger = _counter(), _logger()
        self._counts: dict[str, Counter] = {}

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

    def about(self, event: str) -> Callable[[Delivery, Exception], None]:
        """What tells this line about a message."""
        return lambda delivery, error: self.tell(event, message_id=delivery.message_id, error=str(error))


def chore_failed(error: Exception) -> None:
    """Write down what a chore raised."""
    get_logger("bus").exception("bus_chore_failed", error=str(error))


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
