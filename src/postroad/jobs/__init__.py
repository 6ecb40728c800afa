"""Jobs: graphs of tasks, each of which begins when the tasks it depends on are completed."""

from postroad.jobs.coordinator import DispatchResult
from postroad.jobs.dispatcher import JobDispatcher
from postroad.jobs.jobs import Cancelled, JobCreatedResult, Jobs, Resumed, TasksAdded
from postroad.jobs.status import JobPage, JobStatus, JobSummary, JobTaskStatus, job_story as job_story

__all__ = [
    "Cancelled",
    "DispatchResult",
    "JobCreatedResult",
    "JobDispatcher",
    "JobPage",
    "JobStatus",
    "JobSummary",
    "JobTaskStatus",
    "Jobs",
    "Resumed",
    "TasksAdded",
]
