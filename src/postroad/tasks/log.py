"""What tasks tell: one log line and one count for each thing that happens, and never an input or an output."""

from __future__ import annotations

import logging
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from postroad.errors import describe
from postroad.queues import legible
from postroad.telemetry import get_logger

if TYPE_CHECKING:
    from prometheus_client import Counter


_standard = logging.getLogger("postroad.tasks")
_making = threading.Lock()
_INFORMATION = frozenset(
    {
        *("task_started", "task_completed", "task_interrupted", "task_resent"),
        *("worker_started", "worker_stopped", "worker_role_recovered", "task_receive_recovered"),
    }
)

_DETAILS = frozenset({"task_traceback"})


def tell(event: str, **fields: Any) -> None:
    """Count what happened and write its line.

    An `error` is shown as one line with the place that raised it, without secrets, in 500 characters at the most.
    """
    _counter().labels(event).inc()
    level = logging.DEBUG if event in _DETAILS else logging.INFO if event in _INFORMATION else logging.WARNING
    if _standard.isEnabledFor(level):
        if (error := fields.get("error")) is not None:
            fields["error"] = legible(describe(error) if isinstance(error, BaseException) else error)
        _logger().log(level, event, **fields)


@cache
def _logger() -> Any:
    return get_logger("tasks")


def _counter() -> Counter:
    # Two threads that both find the cache empty would both register the metric, and the second is refused.
    with _making:
        return _made_counter()


@cache
def _made_counter() -> Counter:
    from prometheus_client import Counter

    return Counter("postroad_task_events_total", "What became of tasks.", ["event"])
