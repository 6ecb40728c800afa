"""`/tasks` and `/jobs`: submitting tasks and graphs of them, and how they stand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter, QueryParameter

from postroad.errors import InvalidJob, InvalidTask, NotFound
from postroad.http import forms
from postroad.http.changes import perform
from postroad.http.idempotency import Answer
from postroad.http.openapi import answers
from postroad.http.requests import BODILESS, ApiRequest, Cursor, Limit
from postroad.jobs import JobStatus, TasksAdded
from postroad.views import (
    EventPage,
    JobCancelled,
    JobMade,
    JobResumed,
    JobRows,
    TaskShown,
    TaskSubmitted,
    event_item,
    job_made,
    job_rows,
    submitted,
    task_shown,
)

NewTaskBody = Annotated[
    forms.NewTask, Body(examples=[Example(value={"name": "scrape-store", "input": {"storeId": "store-123"}})])
]
RequestId = Annotated[str, PathParameter(description="The task's request id.")]
At = Annotated[int | None, QueryParameter(ge=0, description="As it was at this moment, in milliseconds.")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="asc: oldest first.")]


@post(
    "/tasks",
    opt={"scope": "publish"},
    status_code=202,
    responses=answers(TaskSubmitted, 400, 409, status=202, says="The run; 200 when the request was known."),
)
async def submit_task(request: ApiRequest, data: NewTaskBody) -> Response[Any]:
    """Have a task run once. The same `requestId` with the same name and input is the same run."""
    access = request.context.work

    def submit() -> Answer:
        timeout = None if data.timeoutMs is None else data.timeoutMs / 1_000
        handle = access.tasks.submit(data.name, data.input, request_id=data.requestId, timeout=timeout)
        state = None if handle.created else access.task_state(handle.request_id)
        document = submitted(handle, "pending" if state is None else state.state)
        return Answer(202 if handle.created else 200, document)

    return await perform(request, submit)


@get("/tasks/{task:str}", opt={"scope": "read"}, responses=answers(TaskShown, 400, 404, says="How it stands."))
async def show_task(request: ApiRequest, task: RequestId, at: At = None) -> Response[TaskShown]:
    """How a task stands, or stood at a moment."""
    look = request.context.work.task_state
    return Response(task_shown(await request.context.run(lambda: _or_not_found(task, lambda: look(task, at)))))


@get(
    "/tasks/{task:str}/history",
    opt={"scope": "read"},
    responses=answers(EventPage, 400, 404, says="Its events as the journal holds them."),
)
async def show_task_history(
    request: ApiRequest, task: RequestId, limit: Limit = 20, cursor: Cursor = None, order: Order = "asc"
) -> Response[EventPage]:
    """Every event of a task, a page at a time."""
    context = request.context
    of = f"tasks/{task}/history/{order}"
    after = None if cursor is None else context.cursors.open(of, cursor)

    def look() -> EventPage:
        _or_not_found(task, lambda: context.work.task_state(task))
        page = context.backend.journal().query(
            "GSI1",
            tenant=context.settings.tenant,
            entity=("TASK", task),
            descending=order == "desc",
            limit=limit,
            cursor=after,
        )
        following = None if page.cursor is None else context.cursors.seal(of, page.cursor)
        return EventPage([event_item(event) for event in page.events], following)

    return Response(await context.run(look))


def _or_not_found(task: str, ask: Any) -> Any:
    """What is known of a task; an id that none can have is not found either."""
    try:
        found = ask()
    except InvalidTask:
        found = None
    if found is None:
        raise NotFound(f'there is no task "{task[:300]}"')
    return found


_TASKS = [
    {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
    {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
]
NewJobBody = Annotated[forms.NewJob, Body(examples=[Example(value={"tasks": _TASKS})])]
MoreTasksBody = Annotated[forms.MoreTasks, Body(examples=[Example(value={"tasks": _TASKS[1:]})])]
JobId = Annotated[str, PathParameter(description="The job's id.")]
Status = Annotated[str | None, QueryParameter(description="Only jobs of this status.")]


@post(
    "/jobs",
    opt={"scope": "publish"},
    status_code=201,
    responses=answers(JobMade, 400, 409, status=201, says="The job; 200 when it was known."),
)
async def submit_job(request: ApiRequest, data: NewJobBody) -> Response[Any]:
    """Have a graph of tasks run. The same `jobId` with the same tasks is the same job."""

    def submit() -> Answer:
        made = request.context.work.jobs.submit_job(data.tasks, job_id=data.jobId, request_id=data.requestId)
        return Answer(201 if made.created else 200, job_made(made))

    return await perform(request, submit)


@get("/jobs", opt={"scope": "read"}, responses=answers(JobRows, 400, says="Jobs, newest first."))
async def list_jobs(
    request: ApiRequest, limit: Limit = 20, cursor: Cursor = None, status: Status = None
) -> Response[JobRows]:
    """All jobs, newest first, a page at a time."""
    cursors, of = request.context.cursors, f"jobs/{status or ''}"
    after = None if cursor is None else cursors.open(of, cursor)

    def look() -> JobRows:
        page = request.context.work.views.list_jobs(limit, after, status)
        following = None if page.cursor is None else cursors.seal(of, page.cursor)
        return job_rows(page, following)

    return Response(await request.context.run(look))


@get("/jobs/{job:str}", opt={"scope": "read"}, responses=answers(JobStatus, 404, says="The job."))
async def show_job(request: ApiRequest, job: JobId) -> Response[JobStatus]:
    """A job with the state of each of its tasks."""
    look = request.context.work.views.job_status
    return Response(await request.context.run(lambda: _known(job, lambda: look(job))))


@post(
    "/jobs/{job:str}/tasks",
    opt={"scope": "publish"},
    status_code=200,
    responses=answers(TasksAdded, 400, 404, 409, says="The tasks are part of the job."),
)
async def add_job_tasks(request: ApiRequest, job: JobId, data: MoreTasksBody) -> Response[Any]:
    """Add tasks to a job that is not over."""

    def add() -> Answer:
        added = _known(job, lambda: request.context.work.jobs.add_tasks(job, data.tasks))
        return Answer(200, added)

    return await perform(request, add)


@post(
    "/jobs/{job:str}/resume",
    opt={"scope": "operate", BODILESS: True},
    status_code=200,
    responses=answers(JobResumed, 404, 409, says="The failed tasks run again."),
)
async def resume_job(request: ApiRequest, job: JobId) -> Response[Any]:
    """Run the failed tasks of a job again."""
    await request.no_body()

    def resume() -> Answer:
        resumed = _known(job, lambda: request.context.work.jobs.resume(job))
        return Answer(200, JobResumed(job, resumed.resumed_tasks))

    return await perform(request, resume)


@post(
    "/jobs/{job:str}/cancel",
    opt={"scope": "operate", BODILESS: True},
    status_code=200,
    responses=answers(JobCancelled, 404, 409, says="What waits never starts, what runs is ended."),
)
async def cancel_job(request: ApiRequest, job: JobId) -> Response[Any]:
    """End a job."""
    await request.no_body()

    def cancel() -> Answer:
        cancelled = _known(job, lambda: request.context.work.jobs.cancel(job))
        return Answer(200, JobCancelled(job, cancelled.cancelled_tasks))

    return await perform(request, cancel)


def _known(job: str, ask: Any) -> Any:
    """What is known of a job; an id that none can have is not found either."""
    try:
        found = ask()
    except InvalidJob as error:
        if error.field != "jobId":
            raise
        found = None
    if found is None:
        raise NotFound(f'there is no job "{job[:300]}"')
    return found
