"""Bugs of tasks and jobs: events after the end, results of former holders, tasks that start too early."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from postroad.testing.mutants.mutant import Mutant, wrap

_LATE, _LATE_SECONDS = 0.05, 4.0


def _heartbeat_overwrites_completed() -> None:
    from postroad.tasks.attempts import Attempt

    def end(original: Callable[..., None], attempt: Attempt, *args: Any, **given: Any) -> None:
        original(attempt, *args, **given)
        if attempt._held is not None:
            until, worker = attempt._lease.effective_until, attempt._shared.worker_id
            late: dict[str, Any] = {"effectiveUntil": until, "heartbeatNumber": 1, "elapsedMs": 1, "workerId": worker}
            late |= {"processId": attempt._pid, "memoryUsage": {"rss": 0}, "lastActivity": None, "progress": None}
            attempt._shared.records.record([attempt._event("Task Heartbeat", **late)])

    wrap(Attempt, "_end", end)


def _no_fencing() -> None:
    from postroad.tasks.attempts import Attempt
    from postroad.tasks.leases import Lease

    wrap(Lease, "is_held_by", lambda original, lease, owner, token: True)
    # The worker sleeps through its lease now and then, as if the machine had stopped it.
    wrap(Attempt, "settle", _late)


def _late(original: Callable[..., None], attempt: Any, *args: Any, **given: Any) -> None:
    if random.random() < _LATE:
        time.sleep(_LATE_SECONDS)
    original(attempt, *args, **given)


def _fan_in_double_start() -> None:
    from postroad.jobs.coordinator import JobCoordinator
    from postroad.jobs.graph import GraphProgress

    def begin(original: Callable[..., Any], coordinator: JobCoordinator, job_id: str, task_ids: Iterable[str]) -> Any:
        _, progress = coordinator._open(job_id)
        tasks = {} if progress is None else progress.graph.tasks
        return original(coordinator, job_id, [*task_ids, *(each for each in tasks if len(tasks[each].depends_on) > 1)])

    def is_ready(original: Callable[..., bool], progress: GraphProgress, task_id: str, is_completed: Any) -> bool:
        return len(progress.graph.tasks[task_id].depends_on) > 1 or original(progress, task_id, is_completed)

    def outputs(original: Callable[..., Any], coordinator: JobCoordinator, *args: Any) -> Any:
        return original(coordinator, *args) or {}

    wrap(JobCoordinator, "begin", begin)
    wrap(GraphProgress, "is_ready", is_ready)
    wrap(JobCoordinator, "_outputs", outputs)


MUTANTS = (
    Mutant(
        name="heartbeat-overwrites-completed",
        bug="a heartbeat is recorded after the end of a task",
        invariant="I22",
        scenario="tasks",
        apply=_heartbeat_overwrites_completed,
        messages=100,
        kills=6,
    ),
    Mutant(
        name="no-fencing",
        bug="a worker that lost its lease still commits its result",
        invariant="I23",
        scenario="tasks",
        apply=_no_fencing,
        messages=200,
        kills=6,
    ),
    Mutant(
        name="fan-in-double-start",
        bug="a task with several dependencies starts before they have completed",
        invariant="I25",
        scenario="jobs",
        apply=_fan_in_double_start,
        messages=60,
        kills=4,
    ),
)
