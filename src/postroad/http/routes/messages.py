"""`/queues/{queue}/messages`: sending messages and looking at them."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.errors import InvalidMessage, QueueNotFound
from postroad.http import forms
from postroad.http.answers import answers
from postroad.http.idempotency import Answer
from postroad.http.paging import page
from postroad.http.peeking import peek_after, position
from postroad.http.performing import perform
from postroad.http.requests import ApiRequest
from postroad.http.routes.parameters import Cursor, Limit, Payload, QueueName, checked
from postroad.queues import OutgoingMessage, Queue, QueueSpec, SendResult
from postroad.queues.rules import check_message
from postroad.views import PeekedPage, SentBatch, open_queue, peeked, queue_not_found, sent
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
) -> Response[PeekedPage]:
    """Look at messages without touching them: no receive count, no visibility."""
    of = f"queues/{queue}/messages"
    after = None if cursor is None else request.context.cursors.open(of, cursor)

    def look() -> PeekedPage:
        messages = peek_after(open_queue(request.context.backend, checked(queue)), after, limit=limit + 1)
        return page(
            request, PeekedPage, of, messages, limit, position=position, row=lambda one: peeked(one, body=payload == 1)
        )

    return Response(await request.context.run(look))


def _send(backend: Backend, name: str, entries: list[forms.Message]) -> Answer:
    queue = _limited(backend, name)
    messages = [OutgoingMessage(one.body, one.attributes, one.group, one.dedup_id, one.delay) for one in entries]
    try:
        results = queue.send(messages)
    except InvalidMessage:
        results = _send_the_good(queue, backend.queue_spec(name), messages)
    return Answer(200, SentBatch([sent(result) for result in results]))


def _limited(backend: Backend, name: str) -> Queue:
    # Over HTTP the queue's limit is a limit: a body that would travel as a blob is answered as too large.
    try:
        return backend.queue(name, overflow="fail")
    except QueueNotFound as error:
        raise queue_not_found(backend, name) from error


def _send_the_good(queue: Queue, spec: QueueSpec, messages: list[OutgoingMessage]) -> list[SendResult]:
    """Send what can be sent; one bad message refused them all, and nothing was stored."""
    refused = [_refusal(spec, message) for message in messages]
    good = [message for message, result in zip(messages, refused, strict=True) if result is None]
    outcomes = iter(queue.send(good) if good else [])
    return [next(outcomes) if result is None else result for result in refused]


def _refusal(spec: QueueSpec, message: OutgoingMessage) -> SendResult | None:
    try:
        check_message(spec, message)
    except InvalidMessage as error:
        return SendResult(ok=False, error=error)
    return None
