"""How many workers a backlog needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from postroad.errors import ConfigurationError
from postroad.queues import QueueStats


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
