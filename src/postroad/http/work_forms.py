"""The forms of what is sent to the routes of tasks and jobs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from postroad.http.forms import Form


class NewTask(Form, frozen=True):
    """A task to run."""

    name: str
    input: dict[str, Any] = {}
    requestId: str | None = None
    timeoutMs: Annotated[int, Meta(ge=1, le=43_200_000)] | None = None


class NewJob(Form, frozen=True):
    """A graph of tasks to run; each has `taskId` and `name`, and may have `dependsOn` and `input`."""

    tasks: list[dict[str, Any]]
    jobId: str | None = None
    requestId: str | None = None


class MoreTasks(Form, frozen=True):
    """Tasks to add to a job."""

    tasks: list[dict[str, Any]]
