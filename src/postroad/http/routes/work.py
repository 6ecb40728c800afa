"""`/tasks`, `/jobs` and `/workers`: submitting tasks and graphs of tasks, their states, and who runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from litestar import Response
from litestar.params import PathParameter, QueryParameter

from postroad.errors import InvalidJob, InvalidTask, NotFound
from postroad.http import forms
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import example, route
from postroad.http.requests import ApiRequest, Cursor, Limit, one_page, page
from postroad.jobs import JobStatus, TasksAdded
from postroad.journal import TaskState
from postroad.tasks import OPEN, ListedTask, TaskFilter, TaskPage, since_of
from postroad.views import (
    EventPage,
    JobCancelled,
    JobMade,
    JobResumed,
    JobRows,
    OperationShown,
    OperationStarted,
    TaskChanged,
    TaskRows,
    TaskShown,
    TaskSubmitted,
    WorkerRows,
    event_item,
    job_made,
    job_rows,
    submitted,
    task_shown,
    worker_row,
)

Result = TypeVar("Result")
NewTaskBody = Annotated[forms.NewTask, example({"name": "scrape-store", "input": {"storeId": "store-123"}})]
RequestId = Annotated[str, PathParameter(description="The task's request id.")]
At = Annotated[int | None, QueryParameter(ge=0, description="As it was at this moment, in milliseconds.")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="asc: oldest first.")]
State = Annotated[str | None, QueryParameter(name="state", description="Only tasks in this state.")]
TaskNamed = Annotated[str | None, QueryParameter(description="Only tasks of this name.")]
Since = Annotated[
    str | None, QueryParameter(description="Only since then: a duration such as 1h, ISO 8601 or milliseconds.")
]
Wait = Annotated[float, QueryParameter(ge=0, le=20, description="Seconds to wait for its end, 0 to 20.")]
OperationId = Annotated[str, PathParameter(description="The operation's id.")]
TaskRetryBody = Annotated[
    forms.TaskRetry, example({"state": "failed", "name": "scrape-store", "since": "1h", "rate": 10, "reason": "fixed"})
]


@route("POST /tasks", "publish", TaskSubmitted, 409, status=202, says="The run; 200 if it exists already.")
async def submit_task(request: ApiRequest, data: NewTaskBody) -> Response[Any]:
    """Submit a task, to run once. The same `requestId` with the same name and input is the same run."""
    access = request.context.work

    def submit() -> Answer:
        timeout = None if data.timeoutMs is None else data.timeoutMs / 1_000
        handle = access.tasks.submit(data.name, data.input, request_id=data.requestId, timeout=timeout)
        state = None if handle.created else access.task_state(handle.request_id)
        document = submitted(handle, "pending" if state is None else state.state)
        return Answer(202 if handle.created else 200, document)

    return await perform(request, submit)


@route("GET /tasks", "read", TaskRows)
async def list_tasks(
    request: ApiRequest,
    limit: Limit = 20,
    cursor: Cursor = None,
    in_state: State = None,
    name: TaskNamed = None,
    since: Since = None,
) -> Response[TaskRows]:
    """List tasks, newest first, a page at a time: by when they came into the state, or were submitted."""
    found = await task_page(request, limit, cursor, in_state, name, since)
    return Response(TaskRows([task_shown(listed.state) for listed in found.items], found.cursor))


async def task_page(
    request: ApiRequest, limit: int, cursor: str | None, in_state: str | None, name: str | None, since: str | None
) -> TaskPage:
    """Return one page of the tasks, with their names."""
    wanted = TaskFilter(state=in_state, name=name, since=since_of(since, _now_ms(request)))

    def find(after: str | None) -> tuple[list[ListedTask], str | None]:
        found = request.context.work.task_page(wanted, limit=limit, cursor=after)
        return list(found.items), found.cursor

    return await one_page(request, TaskPage, f"tasks/{in_state or ''}/{name or ''}/{since or ''}", cursor, find)


@route("GET /tasks/{task:str}", "read", TaskShown, 404, 429)
async def show_task(request: ApiRequest, task: RequestId, at: At = None, wait: Wait = 0.0) -> Response[TaskShown]:
    """Show the state of a task, now or at a time; with `wait` when it has ended, or after so many seconds."""
    context = request.context

    async def look() -> TaskState:
        return await context.run(lambda: _found("task", task, lambda: context.work.task_state(task, at)))

    state = await look()
    if wait and at is None and state.state in OPEN:
        runs = context.work.runs
        end = await context.polls.wait_for(runs.wait_async(task, state.run), wait)
        state = await context.run(lambda: _found("task", task, lambda: runs.state(task, end=end)))
    return Response(task_shown(state))


@route("POST /tasks/{task:str}/retry", "operate", TaskChanged, 404, 409, bodiless=True)
async def retry_task(request: ApiRequest, task: RequestId) -> Response[Any]:
    """Run a failed or cancelled task again."""
    await request.no_body()
    return await perform(request, lambda: Answer(200, retry_now(request, task)))


def retry_now(request: ApiRequest, task: str) -> TaskChanged:
    """Run a failed or cancelled task again, in the name of the caller."""
    handle = _found("task", task, lambda: request.context.work.retry_task(task, actor=_actor(request)))
    return TaskChanged(task, handle.run, "pending")


@route("POST /tasks/{task:str}/cancel", "operate", TaskChanged, 404, 409, bodiless=True)
async def cancel_task(request: ApiRequest, task: RequestId) -> Response[Any]:
    """Prevent a task from running, or kill it if it runs."""
    await request.no_body()
    return await perform(request, lambda: Answer(200, cancel_now(request, task)))


def cancel_now(request: ApiRequest, task: str) -> TaskChanged:
    """Prevent a task from running, or kill it if it runs, in the name of the caller."""
    state = _found("task", task, lambda: request.context.work.cancel_task(task, actor=_actor(request)))
    return TaskChanged(task, state.run, state.state)


@route("POST /tasks/retry", "operate", OperationStarted, status=202)
async def retry_tasks(request: ApiRequest, data: TaskRetryBody) -> Response[Any]:
    """Retry all tasks that match, newest first; the operation goes on by itself, also after a restart."""
    made: list[str] = []
    record = retry_recorder(request, data)

    def begin() -> Answer:
        made.append(record())
        return Answer(202, OperationStarted(made[-1]))

    answer = await perform(request, begin)
    # Only now, when it is stored: a repeat of the request has made none.
    for operation_id in made:
        request.context.operations.run(operation_id)
    return answer


def retry_recorder(request: ApiRequest, data: forms.TaskRetry) -> Callable[[], str]:
    """Return a function that records the retry of all tasks that match as an operation, and returns its id."""
    now = _now_ms(request)
    since = since_of(data.since, now)
    TaskFilter(state=data.state, name=data.name, since=since)
    params: dict[str, Any] = {"state": data.state, "name": data.name, "since": since, "until": now}
    params |= {"limit": data.limit, "rate": data.rate, "reason": data.reason}
    return partial(request.context.operations.record, "task.retry", params, actor=_actor(request))


@route("GET /operations/{operation:str}", "read", OperationShown, 404)
async def show_operation(request: ApiRequest, operation: OperationId) -> Response[OperationShown]:
    """Show how far an operation is."""
    return Response(await request.context.run(lambda: request.context.operations.show(operation)))


def _actor(request: ApiRequest) -> str:
    assert request.user is not None
    return request.user.name


def _now_ms(request: ApiRequest) -> int:
    return int(request.context.clock.now().timestamp() * 1_000)


@route("GET /tasks/{task:str}/history", "read", EventPage, 404)
async def show_task_history(
    request: ApiRequest, task: RequestId, limit: Limit = 20, cursor: Cursor = None, order: Order = "asc"
) -> Response[EventPage]:
    """List every event of a task, a page at a time."""
    context = request.context

    def find(after: str | None) -> tuple[list[Any], str | None]:
        _found("task", task, lambda: context.work.task_state(task))
        found = context.backend.journal().query(
            "GSI1",
            tenant=context.settings.tenant,
            entity=("TASK", task),
            descending=order == "desc",
            limit=limit,
            cursor=after,
        )
        return [event_item(event) for event in found.events], found.cursor

    return await page(request, EventPage, f"tasks/{task}/history/{order}", cursor, find)


_TASKS = [
    {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
    {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
]
NewJobBody = Annotated[forms.NewJob, example({"tasks": _TASKS})]
MoreTasksBody = Annotated[forms.MoreTasks, example({"tasks": _TASKS[1:]})]
JobId = Annotated[str, PathParameter(description="The job's id.")]
Status = Annotated[str | None, QueryParameter(description="Only jobs of this status.")]


@route("POST /jobs", "publish", JobMade, 409, status=201, says="The job; 200 if it exists already.")
async def submit_job(request: ApiRequest, data: NewJobBody) -> Response[Any]:
    """Submit a graph of tasks. The same `jobId` with the same tasks is the same job."""

    def submit() -> Answer:
        made = request.context.work.jobs.submit_job(data.tasks, job_id=data.jobId, request_id=data.requestId)
        return Answer(201 if made.created else 200, job_made(made))

    return await perform(request, submit)


@route("GET /jobs", "read", JobRows)
async def list_jobs(
    request: ApiRequest, limit: Limit = 20, cursor: Cursor = None, status: Status = None
) -> Response[JobRows]:
    """List all jobs, newest first, a page at a time."""
    return Response(await job_page(request, limit, cursor, status))


async def job_page(request: ApiRequest, limit: int, cursor: str | None, status: str | None) -> JobRows:
    """Return one page of the jobs."""

    def find(after: str | None) -> tuple[list[Any], str | None]:
        found = request.context.work.views.list_jobs(limit, after, status)
        return job_rows(found, None).items, found.cursor

    return await one_page(request, JobRows, f"jobs/{status or ''}", cursor, find)


@route("GET /jobs/{job:str}", "read", JobStatus, 404, says="The job.")
async def show_job(request: ApiRequest, job: JobId) -> Response[JobStatus]:
    """Show a job with the state of each of its tasks."""
    return Response(await request.context.run(lambda: job_of(request, job)))


def job_of(request: ApiRequest, job: str) -> JobStatus:
    """Return a job with the state of each of its tasks, or raise `NotFound`."""
    return _found("job", job, lambda: request.context.work.views.job_status(job))


@route("POST /jobs/{job:str}/tasks", "publish", TasksAdded, 404, 409, says="The tasks are part of the job.")
async def add_job_tasks(request: ApiRequest, job: JobId, data: MoreTasksBody) -> Response[Any]:
    """Add tasks to a job that has not ended."""

    def add() -> Answer:
        added = _found("job", job, lambda: request.context.work.jobs.add_tasks(job, data.tasks))
        return Answer(200, added)

    return await perform(request, add)


@route("POST /jobs/{job:str}/resume", "operate", JobResumed, 404, 409, bodiless=True)
async def resume_job(request: ApiRequest, job: JobId) -> Response[Any]:
    """Run the failed tasks of a job again."""
    await request.no_body()
    return await perform(request, lambda: Answer(200, resume_now(request, job)))


def resume_now(request: ApiRequest, job: str) -> JobResumed:
    """Run the failed tasks of a job again."""
    resumed = _found("job", job, lambda: request.context.work.jobs.resume(job))
    return JobResumed(job, resumed.resumed_tasks)


@route("POST /jobs/{job:str}/cancel", "operate", JobCancelled, 404, 409, bodiless=True)
async def cancel_job(request: ApiRequest, job: JobId) -> Response[Any]:
    """Cancel a job: waiting tasks do not start, running ones are killed."""
    await request.no_body()
    return await perform(request, lambda: Answer(200, cancel_job_now(request, job)))


def cancel_job_now(request: ApiRequest, job: str) -> JobCancelled:
    """Cancel a job: waiting tasks do not start, running ones are killed."""
    cancelled = _found("job", job, lambda: request.context.work.jobs.cancel(job))
    return JobCancelled(job, cancelled.cancelled_tasks)


def _found(kind: str, name: str, ask: Callable[[], Result | None]) -> Result:
    """Return what `ask` finds; an id that no task or job can have is not found either."""
    try:
        found = ask()
    except (InvalidTask, InvalidJob) as error:
        if error.field not in ("requestId", "jobId"):
            raise
        found = None
    if found is None:
        raise NotFound(f'there is no {kind} "{name[:300]}"')
    return found


@route("GET /workers", "read", WorkerRows)
async def list_workers(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[WorkerRows]:
    """List the workers that were seen within the last hour; each renews its entry every 30 seconds."""
    return Response(await worker_rows(request, limit, cursor))


async def worker_rows(request: ApiRequest, limit: int, cursor: str | None) -> WorkerRows:
    """Return one page of the workers."""

    def find(after: str | None) -> tuple[list[Any], str | None]:
        found = request.context.work.worker_page(limit=limit, after=after)
        return [worker_row(each) for each in found.items], found.cursor

    return await one_page(request, WorkerRows, "workers", cursor, find)
