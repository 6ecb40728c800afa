"""`/tasks`: submitting tasks, and how they stand and stood."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter, QueryParameter

from postroad.errors import InvalidTask, NotFound
from postroad.http import work_forms as forms
from postroad.http.answers import answers
from postroad.http.idempotency import Answer
from postroad.http.performing import perform
from postroad.http.requests import ApiRequest
from postroad.http.routes.parameters import Cursor, Limit
from postroad.views import EventPage, TaskShown, TaskSubmitted, event_item, submitted, task_shown

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
    desk = request.context.work

    def submit() -> Answer:
        timeout = None if data.timeoutMs is None else data.timeoutMs / 1_000
        handle = desk.tasks.submit(data.name, data.input, request_id=data.requestId, timeout=timeout)
        state = None if handle.created else desk.task_state(handle.request_id)
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
            "GSI1", tenant=context.settings.tenant, entity=("TASK", task), descending=order == "desc", limit=limit,
            cursor=after,
        )  # fmt: skip
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
