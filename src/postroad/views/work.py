"""Tasks, jobs and the journal as the CLI prints them and the HTTP API answers them.

A job's own values (`JobStatus`, `JobSummary`, `TasksAdded`) are shown as they are.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.errors import InvalidQuery
from postroad.journal import KEY_NAMES, Entity, JournalEvent, Page

if TYPE_CHECKING:
    from postroad.jobs import JobCreatedResult, JobPage
    from postroad.journal import TaskState
    from postroad.tasks import TaskHandle


class TaskSubmitted(msgspec.Struct, rename="camel"):
    """The run that was begun or found."""

    request_id: str
    state: str
    run: int
    created: bool


class TaskShown(msgspec.Struct, rename="camel"):
    """How a task stands."""

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


class TaskCancelled(msgspec.Struct, rename="camel"):
    """Whether a task was still to be cancelled."""

    request_id: str
    cancelled: bool


class EventPage(msgspec.Struct):
    """Events as the journal holds them."""

    items: list[dict[str, Any]]
    next_cursor: str | None


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


class JobRow(msgspec.Struct, rename="camel"):
    """One job of a list."""

    job_id: str
    status: str
    total_tasks: int
    created_at: int


class JobRows(msgspec.Struct):
    """Jobs, newest first."""

    items: list[JobRow]
    next_cursor: str | None


class JobResumed(msgspec.Struct, rename="camel"):
    """Tasks that run again."""

    job_id: str
    resumed_tasks: list[str]
    status: str = "processing"


class JobCancelled(msgspec.Struct, rename="camel"):
    """Tasks that end without having run to their end."""

    job_id: str
    cancelled_tasks: list[str]
    status: str = "cancelled"


def submitted(handle: TaskHandle, state: str) -> TaskSubmitted:
    """Return what became of a submission."""
    return TaskSubmitted(handle.request_id, state, handle.run, handle.created)


def task_shown(state: TaskState) -> TaskShown:
    """Return how a task stands."""
    return msgspec.convert(state, TaskShown, from_attributes=True)


def job_made(made: JobCreatedResult) -> JobMade:
    """Return a submitted job."""
    return msgspec.convert(made, JobMade, from_attributes=True)


def job_rows(page: JobPage, next_cursor: str | None) -> JobRows:
    """Return a page of jobs."""
    return JobRows([msgspec.convert(job, JobRow, from_attributes=True) for job in page.items], next_cursor)


def event_item(event: JournalEvent) -> dict[str, Any]:
    """Return the event's item; where part of it could not be read, with the reason."""
    item = event.to_item()
    return item if event.overflow_error is None else {**item, "overflow_error": event.overflow_error}


def timeline(index: str, page: Page) -> Timeline:
    """Return a page of the journal."""
    return Timeline(index, [_without_keys(event) for event in page.events], page.cursor)


def _without_keys(event: JournalEvent) -> dict[str, Any]:
    """Return the event's item without its keys, with what only they tell."""
    item = {name: value for name, value in event_item(event).items() if name not in KEY_NAMES}
    return {"event_id": str(event.event_id), "app": event.app, **item}


def entity_of(text: str | None) -> Entity | None:
    """Return `TASK#req-123` as a pair."""
    if text is None:
        return None
    kind, mark, name = text.partition("#")
    if not mark:
        raise InvalidQuery(f"entity: {text!r} is not a type and an id", field="entity", remedy="Write TASK#req-123.")
    return kind, name


def moment_of(text: str | None, field: str) -> int | None:
    """Return a moment in milliseconds: a number of them, or ISO 8601 in UTC unless it names its zone."""
    if text is None:
        return None
    if text.lstrip("-").isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        remedy = "Give milliseconds since 1970, or ISO 8601 such as 2030-01-01T00:00:00Z."
        raise InvalidQuery(f"{field}: {text!r} is not a moment", field=field, remedy=remedy) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
