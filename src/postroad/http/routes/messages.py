"""`/queues/{queue}/messages`: sending messages and looking at them."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.documents import entry_problem, open_queue, peeked
from postroad.errors import PostroadError
from postroad.http import forms
from postroad.http.answers import PeekedPage, SentBatch, answers
from postroad.http.idempotency import Answer
from postroad.http.paging import page
from postroad.http.peeking import peek_after, position
from postroad.http.performing import perform
from postroad.http.requests import ApiRequest
from postroad.http.routes.parameters import Cursor, Limit, Payload, QueueName, checked
from postroad.queues import OutgoingMessage, SendResult
from postroad.queues.rules import check_message
from postroad.wiring.backend import Backend

MessagesBody = Annotated[
    forms.Messages,
    Body(examples=[Example(value={"messages": [{"body": "hello", "attributes": {"kind": "greeting"}}]})]),
]


@post(
    "/queues/{queue:str}/messages",
    opt={"scope": "publish"},
    status_code=200,
    responses=answers(SentBatch, 400, 404, 409, says="What became of each message."),
)
async def send_messages(request: ApiRequest, queue: QueueName, data: MessagesBody) -> Response[Any]:
    """Send up to 100 messages. A bad one is answered `ok: false`; the others are sent."""
    return await perform(request, lambda: _send(request.context.backend, checked(queue), data.messages))


@get(
    "/queues/{queue:str}/messages",
    opt={"scope": "read"},
    responses=answers(PeekedPage, 400, 404, says="Messages in order."),
)
async def peek_messages(
    request: ApiRequest, queue: QueueName, limit: Limit = 20, cursor: Cursor = None, payload: Payload = 0
) -> Response[dict[str, Any]]:
    """Look at messages without touching them: no receive count, no visibility."""
    of = f"queues/{queue}/messages"
    after = None if cursor is None else request.context.cursors.open(of, cursor)

    def look() -> dict[str, Any]:
        messages = peek_after(open_queue(request.context.backend, checked(queue)), after, limit=limit + 1)
        return page(request, of, messages, limit, position=position, row=lambda one: peeked(one, body=payload == 1))

    return Response(await request.context.run(look))


def _send(backend: Backend, name: str, entries: list[forms.Message]) -> Answer:
    queue = open_queue(backend, name)
    spec = backend.queue_spec(name)
    results: list[SendResult | None] = [None] * len(entries)
    good: list[tuple[int, OutgoingMessage]] = []
    for index, entry in enumerate(entries):
        message = OutgoingMessage(entry.body, entry.attributes, entry.group, entry.dedup_id, entry.delay)
        try:
            check_message(spec, message)
            good.append((index, message))
        except PostroadError as error:
            results[index] = SendResult(ok=False, error=error)
    if good:
        for (index, _), result in zip(good, queue.send([message for _, message in good]), strict=True):
            results[index] = result
    return Answer(200, {"results": [_sent(result) for result in results if result is not None]})


def _sent(result: SendResult) -> dict[str, Any]:
    error = None if result.error is None else entry_problem(result.error)
    return {"ok": result.ok, "message_id": result.message_id, "error": error}
