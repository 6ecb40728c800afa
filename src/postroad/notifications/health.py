"""The health of a worker: whether it works, whether its queues answer, and how many workers there should be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from postroad.arguments import FINITE, check, whole_number
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, PostroadError
from postroad.notifications.messages import moment_text
from postroad.notifications.store import NotificationStore
from postroad.notifications.worker import NotificationWorker
from postroad.queues import Queue, QueueStats

_Positive = Annotated[float, Meta(ge=1, le=FINITE, description="a number of 1 or more")]


class Autoscaler:
    """Decides how many tasks should run, by how many messages wait and how old they are.

    Args:
        min_tasks: The smallest number, by default 1; 0 lets all tasks stop while the queues are empty.
        max_tasks: The largest number, by default 10.
        target_backlog: Messages that may wait for each task, by default 100.
        age_threshold: Seconds that the oldest message may wait, by default 300; beyond it a task is added, and beyond
            twice that time two are.
        in_cooldown: Seconds after a change before tasks are removed, by default 300.
        out_cooldown: Seconds after tasks were added before more are, by default 60.

    Raises:
        ConfigurationError: A number is too small, or `min_tasks` is above `max_tasks`.

    Example:
        Autoscaler(max_tasks=4).decide({"push": queue.stats()}, current=1, at=time.monotonic())
    """

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
        check(min_tasks, whole_number(0), "min_tasks", ConfigurationError)
        check(max_tasks, _Positive, "max_tasks", ConfigurationError)
        check(target_backlog, _Positive, "target_backlog", ConfigurationError)
        check(age_threshold, _Positive, "age_threshold", ConfigurationError)
        if min_tasks > max_tasks:
            raise ConfigurationError("min_tasks: is above max_tasks", field="min_tasks")
        self._min, self._max = min_tasks, max_tasks
        self._target_backlog, self._age_threshold = target_backlog, age_threshold
        self._in_cooldown, self._out_cooldown = in_cooldown, out_cooldown
        self._out_at = self._changed_at = -math.inf

    def decide(self, stats: Mapping[str, QueueStats], current: int, *, at: float) -> int:
        """Return how many tasks there should be, given `stats` and the `current` number, at the monotonic time `at`."""
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


Answer = tuple[int, dict[str, Any]]
_STALLED_SECONDS: Final = 60.0
_CHECKS: Final = {"push": "sqsPushQueue", "offline": "sqsOfflineQueue"}


class Health:
    """The health of one worker; each method returns an HTTP status and a document."""

    def __init__(
        self, worker: NotificationWorker, autoscaler: Autoscaler, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._autoscaler = autoscaler
        self._monotonic = monotonic

    def short(self) -> Answer:
        """Say whether every receiver works. It asks nobody else: an outage elsewhere must not restart all workers."""
        longest = max(_STALLED_SECONDS, 3 * self._worker.wait)
        turned = [receiver.turned_at for receiver in self._worker.receivers.values()]
        stalled = any(at is not None and self._monotonic() - at > longest for at in turned)
        return (503, self._said("stalled")) if stalled else (200, self._said("ok"))

    def detailed(self) -> Answer:
        """Say whether the queues answer, and which providers are paused."""
        checks = {check: self._check(name) for name, check in _CHECKS.items()}
        failed = any(check["status"] == "error" for check in checks.values())
        breakers = {platform: breaker.state for platform, breaker in self._worker.breakers.items()}
        document = self._said("unhealthy" if failed else "healthy") | {"checks": checks, "breakers": breakers}
        return (503 if failed else 200), document

    def scaling(self, current: int = 1) -> Answer:
        """Say how many workers there should be, if there are `current` now."""
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
    """Return how many workers there should be, and how many messages wait for them.

    Args:
        queues: The queues by `push` and `offline`; None for one that is not consumed.
        store: The store whose recorded pushes count as well; None for no store.
        autoscaler: Decides the number.
        current: The number of workers now.
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
        "backlogPerTask": {
            name: round(stats[name].visible / max(current, 1), 3) if name in stats else 0.0 for name in _CHECKS
        },
        "oldestAgeSeconds": {name: stats[name].oldest_age_seconds if name in stats else None for name in _CHECKS},
    }
