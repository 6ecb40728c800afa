"""The journal: what happened to tasks and jobs, appended once, read in eight orders and folded into states."""

from typing import TYPE_CHECKING

from postroad.journal.debts import Owing as Owing, OwingItems as OwingItems, owing_nothing as owing_nothing
from postroad.journal.event import (
    Id as Id,
    JournalEvent,
    is_simple as is_simple,
    own_event as own_event,
    whole as whole,
)
from postroad.journal.events import (
    EVENT_CLASSES as EVENT_CLASSES,
    NestedId as NestedId,
    Number as Number,
    TimeoutMs as TimeoutMs,
)
from postroad.journal.keys import EVENTS as EVENTS, KEY_NAMES as KEY_NAMES, table_name as table_name
from postroad.journal.maintenance import Expiry as Expiry, Verification as Verification
from postroad.journal.overflow import Overflow as Overflow
from postroad.journal.port import (
    AppendResult,
    Appends,
    Entity,
    Entry as Entry,
    Followed as Followed,
    Journal,
    Page,
    entity_of as entity_of,
    every_event as every_event,
    index_for as index_for,
    milliseconds_of as milliseconds_of,
)
from postroad.journal.sqlite import SQLiteRecords as SQLiteRecords
from postroad.journal.states import (
    ATTEMPT_FAILED as ATTEMPT_FAILED,
    CANCELLED as CANCELLED,
    COMPLETED as COMPLETED,
    EVENT_TO_STATE,
    FAILED as FAILED,
    HEARTBEAT as HEARTBEAT,
    INTERRUPTED as INTERRUPTED,
    JOB as JOB,
    JOB_CREATED as JOB_CREATED,
    JOB_TASKS_ADDED as JOB_TASKS_ADDED,
    NOTHING as NOTHING,
    PENDING as PENDING,
    STARTED as STARTED,
    STATES,
    TERMINAL,
    TIMEOUT as TIMEOUT,
    Kind as Kind,
    Related as Related,
    Step as Step,
    Story as Story,
    TaskProgress as TaskProgress,
    TaskState,
    Verdict as Verdict,
    fold,
    iso as iso,
    steps_of as steps_of,
    task_history,
    task_state,
    tasks_by_state,
    tasks_of_job as tasks_of_job,
)
from postroad.journal.store import StoredJournal as StoredJournal
from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.journal.dynamodb import DynamoRecords as DynamoRecords
    from postroad.journal.eventbridge import EventBridgeSender, event_of_detail as event_of_detail
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.journal.dynamodb": "DynamoRecords",
            "postroad.journal.eventbridge": "EventBridgeSender event_of_detail",
        },
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
