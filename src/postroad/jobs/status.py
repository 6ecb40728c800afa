"""How a job stands, task by task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from postroad.jobs.books import Job
from postroad.jobs.graph import GraphTask, request_id_of
from postroad.jobs.mover import Mover, fails
from postroad.journal.states import task_state

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
    tasks = [_task_status(mover, job_id, task) for task in graph.tasks.values()]
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


def _task_status(mover: Mover, job_id: str, task: GraphTask) -> JobTaskStatus:
    request_id = request_id_of(job_id, task.task_id)
    state = task_state(mover.journal, mover.tenant, request_id, raw=True)
    return JobTaskStatus(
        task_id=task.task_id,
        request_id=request_id,
        name=task.name,
        depends_on=list(task.depends_on),
        status="waiting" if state is None else state.state,
        last_event_type=None if state is None else state.last_event_type,
        last_event_at=None if state is None else state.last_event_at,
    )
