"""What is recorded of a job."""

from __future__ import annotations

from typing import Any

from postroad.journal.events.fields import Count, Id, NestedId, Number, Properties


class JobTask(Properties, frozen=True, kw_only=True):
    """One task of a job's graph."""

    task_id: NestedId
    name: str
    depends_on: list[str] = []
    input: dict[str, Any] = {}


class JobProperties(Properties, frozen=True, kw_only=True):
    """What every event of a job carries."""

    job_id: Id


class JobCreated(JobProperties, frozen=True, kw_only=True):
    """A job was submitted."""

    tasks: list[JobTask]
    total_tasks: Count
    request_id: Id | None = None


class JobTasksAdded(JobProperties, frozen=True, kw_only=True):
    """Tasks were added to a job."""

    new_tasks: list[JobTask]
    previous_total_tasks: Count
    total_tasks_now: Count


class JobCompleted(JobProperties, frozen=True, kw_only=True):
    """All tasks of the job are done."""

    total_tasks: Count
    task_statuses: dict[str, str | None]


class JobCancelled(JobProperties, frozen=True, kw_only=True):
    """Somebody cancelled the job."""

    total_tasks: Count
    task_statuses: dict[str, str | None]


class JobFailureDetected(JobProperties, frozen=True, kw_only=True):
    """A task of the job failed for good; other branches go on."""

    failed_task_id: Id
    task_statuses: dict[str, str | None]


class JobResumed(JobProperties, frozen=True, kw_only=True):
    """The failed tasks of the job run again."""

    resumed_tasks: list[str]
    resume_number: Number
