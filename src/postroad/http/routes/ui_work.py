"""`/ui/tasks`, `/ui/jobs`, `/ui/schedules`, `/ui/workers`: work, and the forms that retry, cancel, pause and run it."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import msgspec
from litestar import Response, get, post
from litestar.params import PathParameter, QueryParameter
from litestar.response import Redirect

from postroad.dashboard import MOST_DRAWN, job_drawing
from postroad.errors import InvalidInput
from postroad.http import forms
from postroad.http.forms import misfit
from postroad.http.requests import ApiRequest, Cursor
from postroad.http.routes.schedules import schedule_page
from postroad.http.routes.ui import PAGE, form, shown
from postroad.http.routes.work import (
    cancel_job_now,
    cancel_now,
    job_of,
    job_page,
    resume_now,
    retry_now,
    retry_recorder,
    task_page,
    worker_rows,
)
from postroad.jobs import JobStatus
from postroad.tasks import TaskPage
from postroad.views import TaskShown, problem, task_shown

_ROWS: Final = 25
"""A task is read with its history, so that its page is short."""
_MOST_ERRORS: Final = 3
_STATUSES: Final = ("", "processing", "partial_failure", "completed", "cancelled")
_TASK_ROWS: Final = 200
_URGENT: Final = ("failed", "processing", "pending", "waiting", "cancelled", "completed")
Start = Annotated[int, QueryParameter(ge=0)]
Id = Annotated[str, PathParameter()]
Text = Annotated[str | None, QueryParameter()]
State = Annotated[str | None, QueryParameter(name="state")]


@get("/ui/tasks", **PAGE)
async def tasks(
    request: ApiRequest,
    in_state: State = None,
    name: Text = None,
    since: Text = None,
    cursor: Cursor = None,
    operation: Text = None,
) -> Response[str]:
    """List tasks by state, name and time."""
    asked = {"state": in_state or None, "name": (name or "").strip() or None, "since": (since or "").strip() or None}

    def path_with(**other: str) -> str:
        given = {key: value for key, value in (asked | other).items() if value}
        return f"/ui/tasks?{urlencode(given)}" if given else "/ui/tasks"

    doc, wrong = TaskPage([], None), None
    try:
        doc = await task_page(request, _ROWS, cursor, asked["state"], asked["name"], asked["since"])
    except InvalidInput as error:
        wrong = problem(error, request_id=request.request_id)
    how_far = None
    if operation:
        how_far = await request.context.run(lambda: request.context.operations.show(operation))
    found = {"doc": doc, "problem": wrong, "operation": how_far, "operation_id": operation or ""}
    return shown(request, "tasks", status=200 if wrong is None else 400, path_with=path_with, **found, **asked)


@post("/ui/tasks/{task:str}/retry", **form("operate"))
async def retry_one(request: ApiRequest, task: Id) -> Redirect:
    """Run a failed or cancelled task again."""
    await request.context.run(lambda: retry_now(request, task))
    return _to("/ui/events/", task)


@post("/ui/tasks/{task:str}/cancel", **form("operate"))
async def cancel_one(request: ApiRequest, task: Id) -> Redirect:
    """Prevent a task from running, or kill it."""
    await request.context.run(lambda: cancel_now(request, task))
    return _to("/ui/events/", task)


@post("/ui/tasks/retry", **form("operate"))
async def retry_all(request: ApiRequest) -> Redirect:
    """Retry all tasks that match, and show how far it is."""
    data = _filled(await request.fields(), forms.TaskRetry)
    operation_id = await request.context.run(retry_recorder(request, data))
    request.context.operations.run(operation_id)
    return Redirect(f"/ui/tasks?{urlencode({'state': data.state, 'operation': operation_id})}", status_code=303)


def _filled(fields: dict[str, str], into: type[Any]) -> Any:
    """Return the fields of a form that were filled in; raise `InvalidInput` with the name of a wrong one."""
    given = {name: value for name in into.__struct_fields__ if (value := fields.get(name, "").strip())}
    try:
        return msgspec.convert(given, into, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(str(error)) from None


def _to(path: str, name: str) -> Redirect:
    return Redirect(path + quote(name, safe=""), status_code=303)


@get("/ui/jobs", **PAGE)
async def jobs(request: ApiRequest, cursor: Cursor = None, status: Text = None) -> Response[str]:
    """List jobs, newest first."""
    doc = await job_page(request, 50, cursor, status or None)
    return shown(request, "jobs", doc=doc, chosen=status or "", statuses=_STATUSES)


@get("/ui/jobs/{job:str}", **PAGE)
async def job(request: ApiRequest, job: Id, start: Start = 0) -> Response[str]:
    """Draw a job, and show what failed in it."""
    doc = await request.context.run(lambda: job_of(request, job))
    failed = await request.context.run(lambda: _failed(request, doc))
    is_large = len(doc.tasks) > MOST_DRAWN
    rows = sorted(doc.tasks, key=lambda task: _URGENT.index(task.status)) if is_large else doc.tasks
    following = start + _TASK_ROWS if len(rows) > start + _TASK_ROWS else None
    rows = rows[start : start + _TASK_ROWS]
    drawing = await request.context.run(lambda: job_drawing(doc))
    return shown(
        request,
        "job",
        current="jobs",
        doc=doc,
        rows=rows,
        following=following,
        drawing=drawing,
        failed=failed,
        is_large=is_large,
    )


def _failed(request: ApiRequest, job: JobStatus) -> list[TaskShown]:
    """Return the first failed tasks of a job with their errors."""
    names = [task.request_id for task in job.tasks if task.status == "failed"][:_MOST_ERRORS]
    states = [request.context.work.task_state(name) for name in names]
    return [task_shown(state) for state in states if state is not None]


@post("/ui/jobs/{job:str}/resume", **form("operate"))
async def resume_one_job(request: ApiRequest, job: Id) -> Redirect:
    """Run the failed tasks of a job again."""
    await request.context.run(lambda: resume_now(request, job))
    return _to("/ui/jobs/", job)


@post("/ui/jobs/{job:str}/cancel", **form("operate"))
async def cancel_one_job(request: ApiRequest, job: Id) -> Redirect:
    """Cancel a job."""
    await request.context.run(lambda: cancel_job_now(request, job))
    return _to("/ui/jobs/", job)


@get("/ui/schedules", **PAGE)
async def schedules(request: ApiRequest, cursor: Cursor = None) -> Response[str]:
    """List when tasks run by themselves."""
    return shown(request, "schedules", doc=await schedule_page(request, 50, cursor))


@post("/ui/schedules/{schedule:str}/pause", **form("operate"))
async def pause_one_schedule(request: ApiRequest, schedule: Id) -> Redirect:
    """Let a schedule run no more until it is resumed."""
    await request.context.run(lambda: request.context.work.schedules.pause(schedule))
    return Redirect("/ui/schedules", status_code=303)


@post("/ui/schedules/{schedule:str}/resume", **form("operate"))
async def resume_one_schedule(request: ApiRequest, schedule: Id) -> Redirect:
    """Let a paused schedule run again."""
    await request.context.run(lambda: request.context.work.schedules.resume(schedule))
    return Redirect("/ui/schedules", status_code=303)


@post("/ui/schedules/{schedule:str}/run", **form("operate"))
async def run_one_schedule(request: ApiRequest, schedule: Id) -> Redirect:
    """Run its task once now, and show the run."""
    ran = await request.context.run(lambda: request.context.work.schedules.run(schedule))
    return (
        Redirect("/ui/schedules", status_code=303)
        if ran.last_request_id is None
        else _to("/ui/events/", ran.last_request_id)
    )


@get("/ui/workers", **PAGE)
async def worker_processes(request: ApiRequest, cursor: Cursor = None) -> Response[str]:
    """List worker processes, and what each runs."""
    return shown(request, "workers", doc=await worker_rows(request, 50, cursor))
