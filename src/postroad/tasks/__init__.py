"""Tasks: functions and programs that run in child processes of their own, under a fenced lease."""

from postroad.tasks.alerts import SlackAlerts as SlackAlerts
from postroad.tasks.dead_letters import DeadLetterHandler
from postroad.tasks.event_publisher import EventPublisher as EventPublisher
from postroad.tasks.failures import ErrorClass, NonRetryable, Retryable, classify_error
from postroad.tasks.health import HealthCheck as HealthCheck
from postroad.tasks.leases import Held as Held, Lease as Lease, open_job_key as open_job_key
from postroad.tasks.log import tell as tell
from postroad.tasks.messages import (
    AnyRequestId as AnyRequestId,
    TaskMessage as TaskMessage,
    TaskName as TaskName,
    check_input as check_input,
)
from postroad.tasks.producer import TaskHandle, TaskProducer
from postroad.tasks.queues import (
    ensure_queues,
    open_dispatch_queue as open_dispatch_queue,
    open_queue as open_queue,
    queue_specs as queue_specs,
    tenant_and_app as tenant_and_app,
    wants_events as wants_events,
)
from postroad.tasks.reconciler import Reconciler, ReconcilerLease as ReconcilerLease
from postroad.tasks.records import (
    WITH_ITS_JOB as WITH_ITS_JOB,
    EventFactory as EventFactory,
    TaskId as TaskId,
    TaskRecords as TaskRecords,
    WakeUp as WakeUp,
)
from postroad.tasks.registry import TaskContext, TaskDefinition, TaskRegistry, default_tasks, task
from postroad.tasks.roles import Role as Role
from postroad.tasks.stories import task_story as task_story
from postroad.tasks.submissions import Submission as Submission, Submissions as Submissions
from postroad.tasks.worker import TaskWorker

__all__ = [
    "DeadLetterHandler",
    "ErrorClass",
    "NonRetryable",
    "Reconciler",
    "Retryable",
    "TaskContext",
    "TaskDefinition",
    "TaskHandle",
    "TaskProducer",
    "TaskRegistry",
    "TaskWorker",
    "classify_error",
    "default_tasks",
    "ensure_queues",
    "task",
]
