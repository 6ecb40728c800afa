"""What is recorded of a task."""

from __future__ import annotations

from typing import Any, Literal

from postroad.journal.events.fields import Count, Id, Milliseconds, Number, Properties, Seconds, TimeoutMs


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


class TaskProcessingFailed(TaskProperties, frozen=True, kw_only=True):
    """An attempt failed; there will be another."""

    attempt_number: Number
    error: str
    error_category: str
    crash: dict[str, Any] | None = None


class Usage(Properties, frozen=True, kw_only=True):
    """What the task consumed."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None


class TaskCompleted(TaskProperties, frozen=True, kw_only=True):
    """The child returned its result."""

    output: Any
    duration_ms: Count
    exit_code: int
    usage: Usage | None = None


class TaskFailed(TaskProperties, frozen=True, kw_only=True):
    """The task failed for good."""

    error: str
    error_category: str
    retry_count: Count
    source: Literal["worker", "dlq"]
    crash: dict[str, Any] | None = None


class TaskTimeout(TaskProperties, frozen=True, kw_only=True):
    """The child ran too long and was killed."""

    timeout_ms: Count
    elapsed_ms: Count
    signal: Literal["SIGTERM", "SIGKILL"]


class MemoryUsage(Properties, frozen=True, kw_only=True):
    """The memory of a child, in bytes."""

    rss: Count


class Activity(Properties, frozen=True, kw_only=True):
    """What the child last said it was doing."""

    type: str
    step_name: str | None = None
    timestamp: Seconds | None = None


class TaskHeartbeat(TaskProperties, frozen=True, kw_only=True):
    """The child still runs."""

    effective_until: Seconds
    heartbeat_number: Number
    elapsed_ms: Count
    worker_id: Id
    process_id: int
    memory_usage: MemoryUsage
    last_activity: Activity | None = None


class TaskInterrupted(TaskProperties, frozen=True, kw_only=True):
    """The worker stopped before the task was done; it costs no attempt."""

    reason: str


class TaskCancelled(TaskProperties, frozen=True, kw_only=True):
    """Somebody cancelled the task."""

    reason: str
