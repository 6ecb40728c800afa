"""How a worker is: whether it turns, whether its queues answer, and how many of it there should be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import PostroadError
from postroad.notifications.autoscaler import Autoscaler
from postroad.notifications.checks import moment_text
from postroad.notifications.store import NotificationStore
from postroad.notifications.worker import NotificationWorker
from postroad.queues import Queue, QueueStats

Answer = tuple[int, dict[str, Any]]
_STALLED_SECONDS: Final = 60.0
_CHECKS: Final = {"push": "sqsPushQueue", "offline": "sqsOfflineQueue"}


class Health:
    """Answers for one worker."""

    def __init__(
        self, worker: NotificationWorker, autoscaler: Autoscaler, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._autoscaler = autoscaler
        self._monotonic = monotonic

    def short(self) -> Answer:
        """Whether every consumer turns. Nobody else is asked: an outage elsewhere must not restart all workers."""
        longest = max(_STALLED_SECONDS, 3 * self._worker.wait)
        turned = [receiver.turned_at for receiver in self._worker.receivers.values()]
        stalled = any(at is not None and self._monotonic() - at > longest for at in turned)
        return (503, self._said("stalled")) if stalled else (200, self._said("ok"))

    def detailed(self) -> Answer:
        """Whether the queues answer, and which providers are left alone."""
        checks = {check: self._check(name) for name, check in _CHECKS.items()}
        failed = any(check["status"] == "error" for check in checks.values())
        breakers = {platform: breaker.state for platform, breaker in self._worker.breakers.items()}
        document = self._said("unhealthy" if failed else "healthy") | {"checks": checks, "breakers": breakers}
        return (503 if failed else 200), document

    def scaling(self, current: int = 1) -> Answer:
        """How many workers there should be, given that there are `current`."""
        try:
            return 200, scaling(
                self._queues(), self._worker.store, self._autoscaler, current=current, at=self._monotonic()
            )
        except PostroadError as error:
            return 503, self._said("error") | {"error": str(error)}

    def _check(self, name: str) -> dict[str, Any]:
        queue = self._queues()[name]
        if queue is None or name not in self._worker.receivers:
            return {"status": "disabled"}
        began = time.perf_counter()
        try:
            queue.stats()
        except PostroadError as error:
            return {"status": "error", "error": str(error)}
        return {"status": "ok", "latency": round((time.perf_counter() - began) * 1_000, 3)}

    def _queues(self) -> dict[str, Queue | None]:
        return {"push": self._worker.push_queue, "offline": self._worker.offline_queue}

    def _said(self, status: str) -> dict[str, Any]:
        return {"status": status, "service": "workers", "timestamp": moment_text(SYSTEM_CLOCK.now())}


def scaling(
    queues: Mapping[str, Queue | None],
    store: NotificationStore | None,
    autoscaler: Autoscaler,
    *,
    current: int,
    at: float,
) -> dict[str, Any]:
    """Return how many workers there should be, and what waits for them; pushes that wait in the outbox count too.

    Args:
        queues: The queues by `push` and `offline`; None for one that is not consumed.
        store: Where pushes wait that are not relayed yet.
        autoscaler: Decides.
        current: How many workers there are.
        at: The monotonic time.
    """
    stats = {name: queue.stats() for name, queue in queues.items() if queue is not None}
    waiting = dict(stats)
    if store is not None and "push" in stats:
        outbox = store.outbox.status()
        waiting["outbox"] = QueueStats(outbox.pending, 0, 0, outbox.oldest_pending_seconds)
    return {
        "current": current,
        "desired": autoscaler.decide(waiting, current, at=at),
        "backlogPerTask": {name: _per_task(stats.get(name), current) for name in _CHECKS},
        "oldestAgeSeconds": {name: stats[name].oldest_age_seconds if name in stats else None for name in _CHECKS},
    }


def _per_task(stats: QueueStats | None, current: int) -> float:
    return 0.0 if stats is None else round(stats.visible / max(current, 1), 3)
