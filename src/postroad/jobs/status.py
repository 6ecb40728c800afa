"""How a job stands, task by task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from postroad.jobs.books import Job
from postroad.jobs.graph import GraphTask, request_id_of
from postroad.jobs.mover import Mover, fails
from postroad.journal.states import EVENT_TO_STATE, task_state
from postroad.tasks.leases import Held

PROGRESS: Final = ("waiting", "pending", "processing", "completed", "failed", "cancelled")


class JobTaskStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One task of a job; `waiting` until it is begun."""

    task_id: str
    request_id: str
    name: str
    depends_on: list[str]
    status: str
    last_event_type: str | None
    last_event_at: int | None


class JobSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A job in a list."""

    job_id: str
    status: str
    total_tasks: int
    created_at: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON of the job in a list."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A job and all of its tasks."""

    job_id: str
    status: str
    total_tasks: int
    progress: dict[str, int]
    created_at: int
    completed_at: int | None
    tasks: list[JobTaskStatus]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of the job."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def status_of(mover: Mover, job_id: str, job: Job) -> JobStatus:
    """The job as journal and item tell it."""
    board = mover.boards.get(job_id, job)
    graph = mover.boards.graph(job_id) if board is None else board.graph
    leases = mover.leases(job_id)
    tasks = [_task_status(mover, job_id, task, leases.get(task.task_id)) for task in graph.tasks.values()]
    progress = {name: sum(task.status == name for task in tasks) for name in PROGRESS}
    return JobStatus(
        job_id=job_id, status=_status(job, tasks), total_tasks=job.total, progress=progress, created_at=job.created_at,
        completed_at=job.completed_at if job.status == "completed" else None, tasks=tasks,
    )  # fmt: skip


def _status(job: Job, tasks: Iterable[JobTaskStatus]) -> str:
    """The status of the job as its tasks tell it, whether a dispatcher has seen them or not."""
    if job.is_over:
        return job.status
    return "partial_failure" if any(fails(job, task.task_id, task.status) for task in tasks) else "processing"


def _task_status(mover: Mover, job_id: str, task: GraphTask, held: Held | None) -> JobTaskStatus:
    request_id = request_id_of(job_id, task.task_id)
    status, last_event_type, last_event_at = _told(mover, request_id, held)
    return JobTaskStatus(
        task_id=task.task_id,
        request_id=request_id,
        name=task.name,
        depends_on=list(task.depends_on),
        status=status,
        last_event_type=last_event_type,
        last_event_at=last_event_at,
    )


def _told(mover: Mover, request_id: str, held: Held | None) -> tuple[str, str | None, int | None]:
    """The state of a task with its last event: as its lease has it, or as the journal does where the lease is older."""
    if held is None:
        return "waiting", None, None
    lease = held.lease
    if lease.last_event_type is not None:
        return EVENT_TO_STATE[lease.last_event_type], lease.last_event_type, lease.last_event_at
    state = task_state(mover.journal, mover.tenant, request_id, raw=True)
    return ("waiting", None, None) if state is None else (state.state, state.last_event_type, state.last_event_at)
