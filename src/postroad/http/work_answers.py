"""The forms of what the routes of tasks and jobs answer, for the API's description."""

from __future__ import annotations

from typing import Any

import msgspec


class TaskSubmitted(msgspec.Struct):
    """The run that was begun or found."""

    requestId: str
    state: str
    run: int
    created: bool


class TaskShown(msgspec.Struct):
    """How a task stands."""

    requestId: str
    state: str
    run: int
    attempt: int
    lastEventType: str
    lastEventAt: int
    jobId: str | None
    taskId: str | None
    output: Any
    error: str | None
    errorCategory: str | None


class EventPage(msgspec.Struct):
    """Events as the journal holds them."""

    items: list[dict[str, Any]]
    next_cursor: str | None


class JobMade(msgspec.Struct):
    """A submitted job."""

    jobId: str
    status: str
    totalTasks: int
    rootTasks: list[str]
    createdAt: int


class JobRow(msgspec.Struct):
    """One job of a list."""

    jobId: str
    status: str
    totalTasks: int
    createdAt: int


class JobRows(msgspec.Struct):
    """Jobs, newest first."""

    items: list[JobRow]
    next_cursor: str | None


class JobTaskShown(msgspec.Struct):
    """One task of a job."""

    taskId: str
    requestId: str
    name: str
    dependsOn: list[str]
    status: str
    lastEventType: str | None
    lastEventAt: int | None


class JobShown(msgspec.Struct):
    """A job and all of its tasks."""

    jobId: str
    status: str
    totalTasks: int
    progress: dict[str, int]
    createdAt: int
    completedAt: int | None
    tasks: list[JobTaskShown]


class JobExtended(msgspec.Struct):
    """Tasks that were added."""

    jobId: str
    addedTasks: list[str]
    immediatelyReady: list[str]
    totalTasksNow: int


class JobResumed(msgspec.Struct):
    """Tasks that run again."""

    jobId: str
    status: str
    resumedTasks: list[str]


class JobCancelled(msgspec.Struct):
    """Tasks that end without having run to their end."""

    jobId: str
    status: str
    cancelledTasks: list[str]
