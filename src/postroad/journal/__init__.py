"""The journal: what happened to tasks and jobs, appended once, read in eight orders and folded into states."""

from postroad.journal.event import JournalEvent
from postroad.journal.eventbridge import EventBridgeSender
from postroad.journal.port import AppendResult, Appends, Entity, Journal, Page
from postroad.journal.states import (
    EVENT_TO_STATE,
    STATES,
    TERMINAL,
    TaskState,
    fold,
    task_history,
    task_state,
    tasks_by_state,
)

__all__ = [
    "EVENT_TO_STATE",
    "STATES",
    "TERMINAL",
    "AppendResult",
    "Appends",
    "Entity",
    "EventBridgeSender",
    "Journal",
    "JournalEvent",
    "Page",
    "TaskState",
    "fold",
    "task_history",
    "task_state",
    "tasks_by_state",
]
