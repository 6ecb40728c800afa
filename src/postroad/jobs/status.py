"""The status of jobs: of one, of all, as a drawing, and as a story of what happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from postroad.arguments import check
from postroad.errors import NotFound
from postroad.jobs.coordinator import JobCoordinator, fails
from postroad.jobs.graph import GraphTask, Job, request_id_of
from postroad.journal import (
    EVENT_TO_STATE,
    JOB,
    NOTHING,
    Journal,
    Related,
    Story,
    Verdict,
    every_event,
    steps_of,
    task_state,
)
from postroad.tasks import Held
from postroad.telemetry import counted

if TYPE_CHECKING:
    from postroad.jobs.jobs import Jobs


class JobTaskStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One task of a job; its status is `waiting` until it begins."""

    task_id: str
    """Its id in the job."""
    request_id: str
    """The id of its runs."""
    name: str
    """The task's name."""
    depends_on: list[str]
    """The tasks that it waits for."""
    status: str
    """Its state."""
    last_event_type: str | None
    """The newest event about it."""
    last_event_at: int | None
    """When that was, in milliseconds since 1970."""


class JobSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A job in a list."""

    job_id: str
    """The job."""
    status: str
    """Its status."""
    total_tasks: int
    """How many tasks it has."""
    created_at: int
    """When it was created, in milliseconds since 1970."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the job."""
        return dict(msgspec.to_builtins(self))


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A job and all of its tasks."""

    job_id: str
    """The job."""
    status: str
    """Its status."""
    total_tasks: int
    """How many tasks it has."""
    progress: dict[str, int]
    """How many tasks are in each state."""
    created_at: int
    """When it was created, in milliseconds since 1970."""
    completed_at: int | None
    """When it ended; None while it runs."""
    tasks: list[JobTaskStatus]
    """Its tasks."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the job."""
        return dict(msgspec.to_builtins(self))


def status_of(coordinator: JobCoordinator, job_id: str, job: Job) -> JobStatus:
    """Return the status of the job from its item and its tasks."""
    known = coordinator.graphs.get(job_id, job)
    graph = coordinator.graphs.graph(job_id) if known is None else known.graph
    leases = coordinator.leases(job_id)
    tasks = [_task_status(coordinator, job_id, task, leases.get(task.task_id)) for task in graph.tasks.values()]
    progress = {name: sum(task.status == name for task in tasks) for name in _SIGNS}
    status: str = job.status
    if not job.is_over:
        # By its tasks, whether a dispatcher has seen them or not.
        failed = any(fails(job, task.task_id, task.status) for task in tasks)
        status = "partial_failure" if failed else "processing"
    return JobStatus(
        job_id=job_id,
        status=status,
        total_tasks=job.total,
        progress=progress,
        created_at=job.created_at,
        completed_at=job.completed_at if job.status == "completed" else None,
        tasks=tasks,
    )


def _task_status(coordinator: JobCoordinator, job_id: str, task: GraphTask, held: Held | None) -> JobTaskStatus:
    request_id = request_id_of(job_id, task.task_id)
    seen: tuple[str, str | None, int | None] = "waiting", None, None
    if held is not None and (last := held.lease.last_event_type) is not None:
        seen = EVENT_TO_STATE[last], last, held.lease.last_event_at
    elif held is not None:
        # No event was recorded with the lease.
        state = task_state(coordinator.journal, coordinator.tenant, request_id, raw=True)
        if state is not None:
            seen = state.state, state.last_event_type, state.last_event_at
    return JobTaskStatus(task.task_id, request_id, task.name, list(task.depends_on), *seen)


_SIGNS: Final = {
    "waiting": ("·", "#e5e7eb"),
    "pending": ("○", "#fef3c7"),
    "processing": ("◐", "#bfdbfe"),
    "completed": ("●", "#bbf7d0"),
    "failed": ("✗", "#fecaca"),
    "cancelled": ("⊘", "#d1d5db"),
}
"""The sign and the colour of each state."""


def draw(job: JobStatus, format: str) -> str:
    """Return the drawing in this format, or raise `InvalidInput` if the format is unknown."""
    check(format, Literal["text", "mermaid", "dot"], "format", remedy="Use one of them.")
    drawings = {"text": _text, "mermaid": _mermaid, "dot": _dot}
    return "\n".join(drawings[format](job))


def _text(job: JobStatus) -> Iterator[str]:
    yield f"{job.job_id}  {job.status}"
    for task in job.tasks:
        after = f"  after {', '.join(task.depends_on)}" if task.depends_on else ""
        yield f"{_SIGNS[task.status][0]} {task.task_id}  {task.name}  {task.status}{after}"


def _mermaid(job: JobStatus) -> Iterator[str]:
    yield "graph TD"
    nodes = {task.task_id: f"t{place}" for place, task in enumerate(job.tasks)}
    for task in job.tasks:
        yield f'  {nodes[task.task_id]}["{_label(task)}"]:::{task.status}'
    yield from (f"  {nodes[needed]} --> {nodes[task.task_id]}" for task in job.tasks for needed in task.depends_on)
    yield from (f"  classDef {state} fill:{colour}" for state, (_, colour) in _SIGNS.items())


def _dot(job: JobStatus) -> Iterator[str]:
    yield f'digraph "{job.job_id}" {{'
    yield "  node [shape=box, style=filled];"
    for task in job.tasks:
        yield f'  "{task.task_id}" [label="{_label(task)}", fillcolor="{_SIGNS[task.status][1]}"];'
    yield from (f'  "{needed}" -> "{task.task_id}";' for task in job.tasks for needed in task.depends_on)
    yield "}"


def _label(task: JobTaskStatus) -> str:
    return f"{task.task_id}: {task.name} ({task.status})"


class JobPage(msgspec.Struct, frozen=True):
    """Jobs, newest first; `cursor` is None on the last page."""

    items: list[JobSummary]
    """The jobs."""
    cursor: str | None


def not_found(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}")


_NAMED = 5


def job_story(jobs: Jobs, journal: Journal, tenant: str, job_id: str) -> Story | None:
    """Return what happened to a job and what to do next; None if there is no such job."""
    status = jobs.job_status(job_id)
    if status is None:
        return None
    events = every_event(journal, "GSI1", tenant=tenant, entity=(JOB, job_id), raw=True)
    verdict, following = _verdict(status)
    be = "is" if status.total_tasks == 1 else "are"
    done = f"{status.progress['completed']:,} of {counted(status.total_tasks, 'task')} {be} completed"
    return Story(
        id=job_id,
        kind="job",
        verdict=verdict,
        summary=f"job {job_id}: {status.status.replace('_', ' ')}, {done}",
        steps=steps_of(events, where=None),
        next=following,
        related=[Related(task.request_id, "causes", "task") for task in status.tasks],
    )


def _verdict(status: JobStatus) -> tuple[Verdict, str]:
    match status.status:
        case "completed":
            return "completed", NOTHING
        case "cancelled":
            return "failed", "nothing: it was cancelled"
        case "partial_failure":
            failed = _names(status, "failed", "cancelled")
            return "failed", f"run {failed} again: postroad job resume {status.job_id}"
    if status.progress["processing"]:
        return "in_flight", f"waits for the end of {_names(status, 'processing')}"
    if status.progress["pending"]:
        return "waiting", f"a worker takes {_names(status, 'pending')}: postroad worker --load MODULE"
    return "waiting", "a dispatcher advances it: postroad worker --roles dispatcher"


def _names(status: JobStatus, *states: str) -> str:
    found = [task.task_id for task in status.tasks if task.status in states]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
