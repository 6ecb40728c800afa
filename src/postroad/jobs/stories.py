"""The story of a job: its events, its tasks, and what would move it on."""

from __future__ import annotations

from postroad.jobs.status import JobStatus
from postroad.jobs.viewing import JobViews
from postroad.journal import Journal
from postroad.journal.states import JOB, every_event
from postroad.journal.stories import NOTHING, Related, Story, Verdict, steps_of

_NAMED = 5


def job_story(jobs: JobViews, journal: Journal, tenant: str, job_id: str) -> Story | None:
    """What happened to a job and what would move it on; None when there is no such job."""
    status = jobs.job_status(job_id)
    if status is None:
        return None
    events = every_event(journal, "GSI1", tenant=tenant, entity=(JOB, job_id), raw=True)
    verdict, following = _verdict(status)
    done = f"{status.progress['completed']:,} of {status.total_tasks:,} tasks are completed"
    return Story(
        id=job_id, kind="job", verdict=verdict, summary=f"job {job_id}: {status.status.replace('_', ' ')}, {done}",
        steps=steps_of(events, where=None), next=following,
        related=[Related(task.request_id, "causes", "task") for task in status.tasks],
    )  # fmt: skip


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
        return "waiting", f"a worker takes {_names(status, 'pending')}: postroad worker --import MODULE"
    return "waiting", "a dispatcher brings it forward: postroad worker --roles dispatcher"


def _names(status: JobStatus, *states: str) -> str:
    """The first few tasks that stand so."""
    found = [task.task_id for task in status.tasks if task.status in states]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
