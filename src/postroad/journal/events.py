"""The events of tasks, jobs and health checks: one class for each type, camelCase on the wire."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec

MIN_TIMESTAMP: Final = 10**12
MAX_TIMESTAMP: Final = 10**13 - 1
ID_PATTERN: Final = r"[A-Za-z0-9_.:-]{1,256}"
Id = str
"""An id under one of `ID_NAMES`; `check_content` checks it, where an id seen before costs only a look-up."""
ID_NAMES: Final = ("requestId", "jobId", "taskId", "workerId", "failedTaskId")
NestedId = Annotated[str, msgspec.Meta(pattern=rf"^{ID_PATTERN}\Z")]
MAX_INTEGER: Final = 2**63 - 1
"""The largest whole number that every store holds."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
TimeoutMs = Annotated[int, msgspec.Meta(ge=1, le=43_200_000)]
"""How long a task may run, up to twelve hours."""
Milliseconds = Annotated[int, msgspec.Meta(ge=MIN_TIMESTAMP, le=MAX_TIMESTAMP)]
Seconds = Annotated[int, msgspec.Meta(ge=0, lt=MIN_TIMESTAMP // 10)]
"""Seconds since 1970; milliseconds are above the limit."""


class Properties(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The properties of one event; `None` where an optional one is absent."""


class TaskProperties(Properties, frozen=True, kw_only=True):
    """What every event of a task may carry."""

    request_id: Id
    job_id: Id | None = None
    task_id: Id | None = None
    run: Number | None = None
    token: Count | None = None


class TaskPending(TaskProperties, frozen=True, kw_only=True):
    """The task waits to be run."""

    name: str
    depends_on: list[str] | None = None
    input: dict[str, Any] | None = None
    dependency_outputs: dict[str, Any] | None = None
    timeout_ms: TimeoutMs | None = None


class TaskProcessingStarted(TaskProperties, frozen=True, kw_only=True):
    """A worker started a child for it."""

    effective_until: Seconds
    worker_id: Id
    process_id: int
    started_at: Milliseconds | None = None
    attempt_number: Number | None = None


class FailureProperties(TaskProperties, frozen=True, kw_only=True):
    """What every event of a failure carries."""

    error: str
    error_category: str
    crash: dict[str, Any] | None = None
    traceback: list[str] | None = None
    last_lines: list[str] | None = None


class TaskProcessingFailed(FailureProperties, frozen=True, kw_only=True):
    """An attempt failed; there will be another."""

    attempt_number: Number
    retry_at: Milliseconds | None = None
    """When the next attempt may begin; absent after the last one."""


class Usage(Properties, frozen=True, kw_only=True):
    """The usage that the task reported."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None


class TaskCompleted(TaskProperties, frozen=True, kw_only=True):
    """The child returned its result."""

    output: Any
    duration_ms: Count
    exit_code: int
    usage: Usage | None = None


class TaskFailed(FailureProperties, frozen=True, kw_only=True):
    """The task failed for good."""

    retry_count: Count
    source: Literal["worker", "dlq"]


class TaskTimeout(TaskProperties, frozen=True, kw_only=True):
    """The child ran too long and was killed."""

    timeout_ms: Count
    elapsed_ms: Count
    signal: Literal["SIGTERM", "SIGKILL"]
    last_lines: list[str] | None = None


class MemoryUsage(Properties, frozen=True, kw_only=True):
    """The memory of a child, in bytes."""

    rss: Count


class Activity(Properties, frozen=True, kw_only=True):
    """The last activity that the child reported."""

    type: str
    step_name: str | None = None
    timestamp: Seconds | None = None


class ReportedProgress(Properties, frozen=True, kw_only=True):
    """How much of the task is done, as the child reported it."""

    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)]
    message: str | None = None
    at: Milliseconds


class TaskHeartbeat(TaskProperties, frozen=True, kw_only=True):
    """The child still runs."""

    effective_until: Seconds
    heartbeat_number: Number
    elapsed_ms: Count
    worker_id: Id
    process_id: int
    memory_usage: MemoryUsage
    last_activity: Activity | None = None
    progress: ReportedProgress | None = None


class TaskInterrupted(TaskProperties, frozen=True, kw_only=True):
    """The worker stopped before the task was done; it costs no attempt."""

    reason: str


class TaskCancelled(TaskProperties, frozen=True, kw_only=True):
    """The task was cancelled."""

    reason: str


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
    """The job was cancelled."""

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


class HealthSummary(Properties, frozen=True, kw_only=True):
    """The number of running tasks in each health."""

    total_processing: Count
    healthy: Count
    warning: Count
    critical: Count
    overtime: Count


class TaskHealthCheck(Properties, frozen=True, kw_only=True):
    """The running tasks were checked."""

    summary: HealthSummary
    tasks: list[dict[str, Any]]


EVENT_CLASSES: Final[dict[str, type[Properties]]] = {
    # `TaskProcessingStarted` is the class of "Task Processing Started".
    re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__): cls
    for cls in (
        *(TaskPending, TaskProcessingStarted, TaskProcessingFailed, TaskCompleted, TaskFailed, TaskTimeout),
        *(TaskHeartbeat, TaskInterrupted, TaskCancelled, JobCreated, JobTasksAdded, JobCompleted, JobCancelled),
        *(JobFailureDetected, JobResumed, TaskHealthCheck),
    )
}
