"""Tasks: functions and programs that run in their own child processes, under a fenced lease."""

from typing import TYPE_CHECKING

from postroad.errors import NonRetryable, Retryable
from postroad.lazy import lazy_names
from postroad.tasks.error_categories import ErrorClass, classify_error
from postroad.tasks.processes import TaskEntry as TaskEntry
from postroad.tasks.registry import TaskContext, TaskDefinition, TaskName as TaskName, TaskRegistry, default_tasks, task
from postroad.tasks.schedules import Schedule

if TYPE_CHECKING:
    from postroad.tasks.dead_letters import DeadLetterHandler
    from postroad.tasks.event_publisher import EventPublisher as EventPublisher
    from postroad.tasks.handles import OPEN as OPEN, TaskHandle, TaskRuns as TaskRuns
    from postroad.tasks.health import HealthCheck as HealthCheck, SlackAlerts as SlackAlerts, health_role as health_role
    from postroad.tasks.leases import (
        Held as Held,
        Lease as Lease,
        TaskRecords as TaskRecords,
        WakeUp as WakeUp,
        current_state as current_state,
        first_lease_in_job as first_lease_in_job,
        open_job_key as open_job_key,
    )
    from postroad.tasks.listing import (
        ListedTask as ListedTask,
        TaskFilter as TaskFilter,
        TaskList as TaskList,
        TaskPage as TaskPage,
        since_of as since_of,
    )
    from postroad.tasks.messages import (
        WITH_ITS_JOB as WITH_ITS_JOB,
        AnyRequestId as AnyRequestId,
        EventFactory as EventFactory,
        TaskId as TaskId,
        TaskMessage as TaskMessage,
        check_input as check_input,
        ensure_queues,
        log_event as log_event,
        open_queue as open_queue,
        queue_specs as queue_specs,
        scan as scan,
        tenant_and_app as tenant_and_app,
        wants_events as wants_events,
    )
    from postroad.tasks.presence import WorkerPage as WorkerPage, WorkerShown as WorkerShown, worker_page as worker_page
    from postroad.tasks.producer import TaskProducer
    from postroad.tasks.reconciler import Reconciler, ReconcilerLease as ReconcilerLease
    from postroad.tasks.schedule_records import Schedules as Schedules, ScheduleShown as ScheduleShown
    from postroad.tasks.scheduler import Scheduler as Scheduler
    from postroad.tasks.stories import task_story as task_story
    from postroad.tasks.submissions import Submission as Submission, Submissions as Submissions
    from postroad.tasks.threads import Role as Role
    from postroad.tasks.worker import TaskWorker
else:
    # Children import this folder, and need little of it.
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.tasks.dead_letters": "DeadLetterHandler",
            "postroad.tasks.event_publisher": "EventPublisher",
            "postroad.tasks.handles": "OPEN TaskHandle TaskRuns",
            "postroad.tasks.health": "HealthCheck SlackAlerts health_role",
            "postroad.tasks.leases": "Held Lease TaskRecords WakeUp current_state first_lease_in_job open_job_key",
            "postroad.tasks.listing": "ListedTask TaskFilter TaskList TaskPage since_of",
            "postroad.tasks.messages": "WITH_ITS_JOB AnyRequestId EventFactory TaskId TaskMessage check_input"
            " ensure_queues log_event open_queue queue_specs scan tenant_and_app wants_events",
            "postroad.tasks.presence": "WorkerPage WorkerShown worker_page",
            "postroad.tasks.producer": "TaskProducer",
            "postroad.tasks.reconciler": "Reconciler ReconcilerLease",
            "postroad.tasks.schedule_records": "Schedules ScheduleShown",
            "postroad.tasks.scheduler": "Scheduler",
            "postroad.tasks.stories": "task_story",
            "postroad.tasks.submissions": "Submission Submissions",
            "postroad.tasks.threads": "Role",
            "postroad.tasks.worker": "TaskWorker",
        },
    )

__all__ = [
    "DeadLetterHandler",
    "ErrorClass",
    "NonRetryable",
    "Reconciler",
    "Retryable",
    "Schedule",
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
