"""Tasks, jobs and the journal as the CLI prints them and the HTTP API answers them.

The values of other packages that are frozen data already (`JobStatus`, `WorkerShown`, …) are shown as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroad import journal
from postroad.journal import KEY_NAMES, JournalEvent, TaskProgress

if TYPE_CHECKING:
    from postroad.jobs import JobCreatedResult
    from postroad.journal import TaskState
    from postroad.tasks import TaskHandle


class TaskSubmitted(msgspec.Struct, rename="camel"):
    """The run that was started, or the one that exists already."""

    request_id: str
    state: str
    run: int
    created: bool


class TaskShown(msgspec.Struct, rename="camel"):
    """The state of a task."""

    request_id: str
    state: str
    run: int
    attempt: int
    last_event_type: str
    last_event_at: int
    job_id: str | None
    task_id: str | None
    output: Any
    error: str | None
    error_category: str | None
    traceback: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The last lines of the traceback of the error."""
    last_lines: list[str] | msgspec.UnsetType = msgspec.UNSET
    """What the failed attempt printed last."""
    progress: TaskProgress | msgspec.UnsetType = msgspec.UNSET
    """What the running or failed attempt reported last."""

    @property
    def lines(self) -> list[str]:
        """The traceback, then the last lines."""
        return [line for lines in (self.traceback, self.last_lines) if lines is not msgspec.UNSET for line in lines]


class TaskChanged(msgspec.Struct, rename="camel"):
    """The run and the state of a task that was retried or cancelled."""

    request_id: str
    run: int
    state: str


class TaskCancelled(msgspec.Struct, rename="camel"):
    """Whether a task was cancelled; False if it had ended already."""

    request_id: str
    cancelled: bool


class Timeline(msgspec.Struct):
    """A page of the journal, with the index that it came from."""

    index: str
    items: list[dict[str, Any]]
    next_cursor: str | None


class JobMade(msgspec.Struct, rename="camel"):
    """A submitted job."""

    job_id: str
    status: str
    total_tasks: int
    root_tasks: list[str]
    created_at: int


class JobResumed(msgspec.Struct, rename="camel"):
    """Tasks that run again."""

    job_id: str
    resumed_tasks: list[str]
    status: str = "processing"


class JobCancelled(msgspec.Struct, rename="camel"):
    """The tasks that were cancelled."""

    job_id: str
    cancelled_tasks: list[str]
    status: str = "cancelled"


def submitted(handle: TaskHandle[Any], state: str) -> TaskSubmitted:
    """Return the result of a submission."""
    return TaskSubmitted(handle.request_id, state, handle.run, handle.created)


def task_shown(state: TaskState) -> TaskShown:
    """Return the state of a task; what there is none of is left out."""
    known = msgspec.structs.asdict(state)
    absent = [name for name in ("traceback", "last_lines", "progress") if not known[name]]
    return TaskShown(**{name: known[name] for name in TaskShown.__struct_fields__ if name not in absent})


def job_made(made: JobCreatedResult) -> JobMade:
    """Return a submitted job."""
    return msgspec.convert(made, JobMade, from_attributes=True)


def event_item(event: JournalEvent) -> dict[str, Any]:
    """Return the event's item, with the reason if part of it could not be read."""
    item = event.to_item()
    return item if event.overflow_error is None else {**item, "overflow_error": event.overflow_error}


def timeline(index: str, page: journal.Page) -> Timeline:
    """Return a page of the journal: the items without their keys, with what only the keys say."""
    items = [
        {"event_id": str(event.event_id), "app": event.app}
        | {name: value for name, value in event_item(event).items() if name not in KEY_NAMES}
        for event in page.events
    ]
    return Timeline(index, items, page.cursor)
