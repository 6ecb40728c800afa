"""Tasks: functions and programs that run in child processes of their own, under a fenced lease."""

from postroad.tasks.dead_letters import DeadLetterHandler
from postroad.tasks.failures import ErrorClass, NonRetryable, Retryable, classify_error
from postroad.tasks.producer import TaskHandle, TaskProducer
from postroad.tasks.queues import ensure_queues
from postroad.tasks.reconciler import Reconciler
from postroad.tasks.registry import TaskContext, TaskDefinition, TaskRegistry, default_tasks, task
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
