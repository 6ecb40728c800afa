"""How a worker is: whether it turns, whether its queues answer, and how many of it there should be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, PostroadError
from postroad.notifications.checks import moment_text
from postroad.notifications.store import NotificationStore
from postroad.notifications.worker import NotificationWorker
from postroad.queues import Queue, QueueStats


class Autoscaler:
    """Decides by what waits for each task and how old it is; changes wait for the end of a cooldown."""

    def __init__(
        self,
        *,
        min_tasks: int = 1,
        max_tasks: int = 10,
        target_backlog: int = 100,
        age_threshold: float = 300,
        in_cooldown: float = 300,
        out_cooldown: float = 60,
    ) -> None:
        _check(min_tasks=min_tasks, max_tasks=max_tasks, target_backlog=target_backlog, age_threshold=age_threshold)
        self._min, self._max = min_tasks, max_tasks
        self._target_backlog, self._age_threshold = target_backlog, age_threshold
        self._in_cooldown, self._out_cooldown = in_cooldown, out_cooldown
        self._out_at = self._changed_at = -math.inf

    def decide(self, stats: Mapping[str, QueueStats], current: int, *, at: float) -> int:
        """How many tasks there should be at the monotonic time `at`, given that there are `current`."""
        wanted = self._wanted(stats.values(), current)
        if wanted > current and at - self._out_at >= self._out_cooldown:
            self._out_at = self._changed_at = at
            return wanted
        if wanted < current and at - self._changed_at > self._in_cooldown:
            self._changed_at = at
            return wanted
        return current

    def _wanted(self, queues: Collection[QueueStats], current: int) -> int:
        most = max((math.ceil(queue.visible / self._target_backlog) for queue in queues), default=0)
        oldest = max((queue.oldest_age_seconds or 0.0 for queue in queues), default=0.0)
        if oldest > self._age_threshold:
            most = max(most, current + (2 if oldest > 2 * self._age_threshold else 1))
        idle = all(queue.visible == queue.in_flight == queue.delayed == 0 for queue in queues)
        least = self._min if idle else max(self._min, 1)
        return min(max(most, least), self._max)


def _check(**numbers: Any) -> None:
    for name, number in numbers.items():
        lowest = 0 if name == "min_tasks" else 1
        if not isinstance(number, int | float) or not lowest <= number < math.inf:
            raise ConfigurationError(f"{name}: {number!r} is not a number of {lowest} or more", field=name)
    if numbers["min_tasks"] > numbers["max_tasks"]:
        raise ConfigurationError("min_tasks: is above max_tasks", field="min_tasks")


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
