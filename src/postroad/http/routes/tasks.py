"""`/tasks` and `/operations`: submitting tasks, their states, retrying and cancelling them, and their page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import PathParameter, QueryParameter
from litestar.response import Redirect

from postroad import views
from postroad.errors import InvalidInput, InvalidJob, InvalidTask, NotFound
from postroad.http import forms
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import example, route
from postroad.http.requests import ApiRequest, Cursor, Limit, actor_of, page
from postroad.http.routes.ui import PAGE, Text, changing, filled, form, redirect, shown
from postroad.journal import TaskState
from postroad.tasks import OPEN, ListedTask, TaskFilter, since_of

_ROWS: Final = 25
"""A task is read with its history, so that its page is short."""
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


@route("POST /tasks", "publish", views.TaskSubmitted, 409, status=202, says="The run; 200 if it exists already.")
async def submit_task(request: ApiRequest, data: NewTaskBody) -> Response[Any]:
    """Submit a task, to run once. The same `requestId` with the same name and input is the same run."""
    access = request.context.work

    def submit() -> Answer:
        timeout = None if data.timeoutMs is None else data.timeoutMs / 1_000
        request_id = request.repeatable_id() if data.requestId is None else data.requestId
        handle = access.tasks.submit(data.name, data.input, request_id=request_id, timeout=timeout)
        state = None if handle.created else access.task_state(handle.request_id)
        document = views.submitted(handle, "pending" if state is None else state.state)
        return Answer(202 if handle.created else 200, document)

    return await perform(request, submit)


@route("GET /tasks", "read", views.Page[views.TaskShown])
async def list_tasks(
    request: ApiRequest,
    limit: Limit = 20,
    cursor: Cursor = None,
    in_state: State = None,
    name: TaskNamed = None,
    since: Since = None,
) -> views.Page[views.TaskShown]:
    """List tasks, newest first, a page at a time: by when they came into the state, or were submitted."""
    listed = await _task_page(request, limit, cursor, in_state, name, since)
    return views.Page([views.task_shown(each.state) for each in listed.items], listed.next_cursor)


async def _task_page(
    request: ApiRequest, limit: int, cursor: str | None, in_state: str | None, name: str | None, since: str | None
) -> views.Page[ListedTask]:
    """Return one page of the tasks, with their names."""
    wanted = TaskFilter(state=in_state, name=name, since=since_of(since, _now_ms(request)))

    def find(after: str | None) -> tuple[list[ListedTask], str | None]:
        listed = request.context.work.task_page(wanted, limit=limit, cursor=after)
        return listed.items, listed.cursor

    return await page(request, f"tasks/{in_state or ''}/{name or ''}/{since or ''}", cursor, find)


@route("GET /tasks/{task:str}", "read", views.TaskShown, 404, 429)
async def show_task(request: ApiRequest, task: RequestId, at: At = None, wait: Wait = 0.0) -> views.TaskShown:
    """Show the state of a task, now or at a time; `wait` delays the answer until it has ended, or the time is over."""
    context = request.context

    async def look() -> TaskState:
        return await context.run(lambda: found("task", task, lambda: context.work.task_state(task, at)))

    state = await look()
    if wait and at is None and state.state in OPEN:
        runs = context.work.runs
        end = await context.polls.wait_for(runs.wait_async(task, state.run), wait)
        state = await context.run(lambda: found("task", task, lambda: runs.state(task, end=end)))
    return views.task_shown(state)


@route("POST /tasks/{task:str}/retry", "operate", views.TaskChanged, 404, 409, bodiless=True)
async def retry_task(request: ApiRequest, task: RequestId) -> Response[Any]:
    """Run a failed or cancelled task again."""

    def retry() -> views.TaskChanged:
        handle = found("task", task, lambda: request.context.work.retry_task(task, actor=actor_of(request)))
        return views.TaskChanged(task, handle.run, "pending")

    return await perform(request, retry)


@route("POST /tasks/{task:str}/cancel", "operate", views.TaskChanged, 404, 409, bodiless=True)
async def cancel_task(request: ApiRequest, task: RequestId) -> Response[Any]:
    """Prevent a task from running, or kill it if it runs."""

    def cancel() -> views.TaskChanged:
        state = found("task", task, lambda: request.context.work.cancel_task(task, actor=actor_of(request)))
        return views.TaskChanged(task, state.run, state.state)

    return await perform(request, cancel)


@route("POST /tasks/retry", "operate", views.OperationStarted, status=202)
async def retry_tasks(request: ApiRequest, data: TaskRetryBody) -> Response[Any]:
    """Retry all tasks that match, newest first; the operation goes on by itself, also after a restart."""
    return await start_operation(request, _retry_recorder(request, data))


async def start_operation(request: ApiRequest, record: Callable[[], str]) -> Response[Any]:
    """Record an operation, begin it, and answer its id; a repeat of the request begins no second one."""
    made: list[str] = []

    def begin() -> views.OperationStarted:
        made.append(record())
        return views.OperationStarted(made[-1])

    answer = await perform(request, begin)
    # Only now, when it is stored: a repeat of the request has made none.
    for operation_id in made:
        request.context.operations.run(operation_id)
    return answer


def _retry_recorder(request: ApiRequest, data: forms.TaskRetry) -> Callable[[], str]:
    """Return a function that records the retry of all tasks that match as an operation, and returns its id."""
    now = _now_ms(request)
    since = since_of(data.since, now)
    TaskFilter(state=data.state, name=data.name, since=since)
    params: dict[str, Any] = {"state": data.state, "name": data.name, "since": since, "until": now}
    params |= {"limit": data.limit, "rate": data.rate, "reason": data.reason}
    return partial(request.context.operations.record, "task.retry", params, actor=actor_of(request))


@route("GET /operations/{operation:str}", "read", views.OperationShown, 404)
async def show_operation(request: ApiRequest, operation: OperationId) -> views.OperationShown:
    """Show how far an operation is."""
    return await request.context.run(lambda: request.context.operations.show(operation))


def _now_ms(request: ApiRequest) -> int:
    return int(request.context.clock.now().timestamp() * 1_000)


@route("GET /tasks/{task:str}/history", "read", views.Page[dict[str, Any]], 404)
async def show_task_history(
    request: ApiRequest, task: RequestId, limit: Limit = 20, cursor: Cursor = None, order: Order = "asc"
) -> views.Page[dict[str, Any]]:
    """List every event of a task, a page at a time."""
    context = request.context

    def find(after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        found("task", task, lambda: context.work.task_state(task))
        events = context.backend.journal().query(
            "GSI1",
            tenant=context.settings.tenant,
            entity=("TASK", task),
            descending=order == "desc",
            limit=limit,
            cursor=after,
        )
        return [views.event_item(event) for event in events.events], events.cursor

    return await page(request, f"tasks/{task}/history/{order}", cursor, find)


def found(kind: str, name: str, ask: Callable[[], Result | None]) -> Result:
    """Return what `ask` finds; an id that no task or job can have is not found either."""
    try:
        answer = ask()
    except (InvalidTask, InvalidJob) as error:
        if error.field not in ("requestId", "jobId"):
            raise
        answer = None
    if answer is None:
        raise NotFound(f'there is no {kind} "{name[:300]}"')
    return answer


@get("/ui/tasks", **PAGE)
async def tasks_page(
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

    doc, wrong = views.Page[ListedTask]([], None), None
    try:
        doc = await _task_page(request, _ROWS, cursor, asked["state"], asked["name"], asked["since"])
    except InvalidInput as error:
        wrong = error
    how_far = await show_operation.fn(request, operation) if operation else None
    progress = {"operation": how_far, "operation_id": operation or ""}
    return shown(request, "tasks", error=wrong, doc=doc, path_with=path_with, **progress, **asked)


retry_one = changing("/ui/tasks/{task:str}/retry", retry_task, "/ui/events/{task}")
cancel_one = changing("/ui/tasks/{task:str}/cancel", cancel_task, "/ui/events/{task}")


@post("/ui/tasks/retry", **form("operate"))
async def retry_all(request: ApiRequest) -> Redirect:
    """Retry all tasks that match, and show how far it is."""
    fields = {name: value.strip() for name, value in (await request.fields()).items()}
    data = filled(fields, forms.TaskRetry, *forms.TaskRetry.__struct_fields__)
    operation_id = await request.context.run(_retry_recorder(request, data))
    request.context.operations.run(operation_id)
    return redirect("/ui/tasks", state=data.state, operation=operation_id)
