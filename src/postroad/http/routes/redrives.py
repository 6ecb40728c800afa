"""`/queues/{queue}/redrive`: moving dead letters back, as an operation that a restart does not end."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response

from postroad.http import forms
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import answers, example, route
from postroad.http.redrives import KIND
from postroad.http.requests import ApiRequest, QueueName, actor_of, checked
from postroad.operations import RedriveReport
from postroad.views import OperationStarted

RedriveBody = Annotated[
    forms.Redrive,
    example({"match": {"fingerprint": "1f0c"}, "canary": 2, "rate": 50, "reason": "fixed in 1.4", "dry_run": True}),
]


@route(
    "POST /queues/{queue:str}/redrive",
    "operate",
    OperationStarted,
    *(404, 409),
    status=202,
    also=answers(RedriveReport, says="What would move, with `dry_run`."),
)
async def redrive_queue(request: ApiRequest, queue: QueueName, data: RedriveBody) -> Response[Any]:
    """Move dead letters back; the operation goes on by itself, also after a restart."""
    redrives, operations = request.context.redrives, request.context.operations
    name = checked(queue)
    made: list[str] = []

    def begin() -> Answer:
        if data.dry_run:
            return Answer(200, redrives.preview(name, data))
        made.append(operations.record(KIND, redrives.check(name, data), actor=actor_of(request)))
        return Answer(202, OperationStarted(made[-1]))

    answer = await perform(request, begin)
    # Only now, when it is stored: a repeat of the request has made none.
    for operation_id in made:
        operations.run(operation_id)
    return answer


async def preview_redrive(request: ApiRequest, queue: str, data: forms.Redrive) -> RedriveReport:
    """Return what a redrive would move, for a page."""
    return await request.context.run(lambda: request.context.redrives.preview(checked(queue), data))


async def begin_redrive(request: ApiRequest, queue: str, data: forms.Redrive) -> str:
    """Begin a redrive and return the id of its operation, for a page."""
    context = request.context

    def begin() -> str:
        made = context.operations.record(KIND, context.redrives.check(checked(queue), data), actor=actor_of(request))
        context.operations.run(made)
        return made

    return await context.run(begin)
