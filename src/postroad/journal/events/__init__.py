"""The events of tasks, jobs and health checks: one class for each type, camelCase on the wire."""

from postroad.journal.events.health import HealthSummary, TaskHealthCheck
from postroad.journal.events.jobs import (
    JobCancelled,
    JobCompleted,
    JobCreated,
    JobFailureDetected,
    JobResumed,
    JobTask,
    JobTasksAdded,
)
from postroad.journal.events.tasks import (
    Activity,
    MemoryUsage,
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskHeartbeat,
    TaskInterrupted,
    TaskPending,
    TaskProcessingFailed,
    TaskProcessingStarted,
    TaskTimeout,
    Usage,
)
from postroad.journal.events.types import EVENT_CLASSES, check_properties, entity_type_of

__all__ = [
    "EVENT_CLASSES",
    "Activity",
    "HealthSummary",
    "JobCancelled",
    "JobCompleted",
    "JobCreated",
    "JobFailureDetected",
    "JobResumed",
    "JobTask",
    "JobTasksAdded",
    "MemoryUsage",
    "TaskCancelled",
    "TaskCompleted",
    "TaskFailed",
    "TaskHealthCheck",
    "TaskHeartbeat",
    "TaskInterrupted",
    "TaskPending",
    "TaskProcessingFailed",
    "TaskProcessingStarted",
    "TaskTimeout",
    "Usage",
    "check_properties",
    "entity_type_of",
]
