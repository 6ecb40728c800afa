"""`/queues`: making, listing, emptying and removing queues, sending messages and looking at them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.errors import InvalidInput, InvalidMessage, QueueNotFound
from postroad.http import forms
from postroad.http.changes import perform
from postroad.http.idempotency import Answer
from postroad.http.openapi import answers
from postroad.http.pages import page, peek_after, position
from postroad.http.requests import ApiRequest, Confirm, Cursor, Limit, Payload, QueueName, checked
from postroad.operations import failure_groups, purge
from postroad.queues import OutgoingMessage, Queue, QueueSpec, SendResult, check_message
from postroad.views import (
    FailureGroupPage,
    PeekedPage,
    Purged,
    QueueDetail,
    QueuePage,
    SentBatch,
    failure_groups_page,
    open_queue,
    peeked,
    queue_detail,
    queue_not_found,
    queue_row,
    sent,
)
from postroad.wiring import Backend

SettingsBody = Annotated[
    forms.QueueSettings,
    Body(examples=[Example(value={"visibility": 60, "dead_letter": "orders-dlq", "max_receives": 5})]),
]
PurgeBody = Annotated[forms.Purge, Body(examples=[Example(value={"confirm": "orders", "reason": "test data"})])]


@get("/queues", opt={"scope": "read"}, responses=answers(QueuePage, 400, says="Queues by name."))
async def list_queues(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[QueuePage]:
    """All queues by name, a page at a time."""
    backend = request.context.backend
    after = "" if cursor is None else request.context.cursors.open("queues", cursor)

    def look() -> QueuePage:
        names = [name for name in backend.queues() if name > after]
        # One that is deleted while the page is put together is left out.
        rows = {found.spec.name: queue_row(found) for found in backend.overviews(names[:limit])}
        return page(request, QueuePage, "queues", names, limit, position=str, row=rows.get)

    return Response(await request.context.run(look))


@get("/queues/{queue:str}", opt={"scope": "read"}, responses=answers(QueueDetail, 400, 404, says="The queue."))
async def show_queue(request: ApiRequest, queue: QueueName) -> Response[QueueDetail]:
    """One queue with its settings and the queues whose dead letters it takes."""
    backend = request.context.backend
    return Response(await request.context.run(lambda: queue_detail(backend, checked(queue))))


@put(
    "/queues/{queue:str}",
    opt={"scope": "admin"},
    status_code=200,
    responses=answers(QueueDetail, 400, 404, 409, says="It was there, with the same settings.")
    | answers(QueueDetail, status=201, says="It was made."),
)
async def put_queue(request: ApiRequest, queue: QueueName, data: SettingsBody) -> Response[QueueDetail]:
    """Make the queue. It may be there already with the same settings; other settings are a conflict."""
    spec = _spec(queue, data)
    made, document = await request.context.run(lambda: _make(request.context.backend, spec))
    return Response(document, status_code=201 if made else 200)


@delete(
    "/queues/{queue:str}", opt={"scope": "admin"}, responses=answers(None, 400, 404, status=204, says="It is gone.")
)
async def delete_queue(request: ApiRequest, queue: QueueName, confirm: Confirm = "") -> None:
    """Remove the queue with what it holds; `confirm` repeats its name."""
    _check_confirm(queue, confirm)
    backend = request.context.backend

    def remove() -> None:
        try:
            backend.delete_queue(checked(queue))
        except QueueNotFound as error:
            raise queue_not_found(backend, queue) from error

    await request.context.run(remove)


@post(
    "/queues/{queue:str}/purge",
    opt={"scope": "admin"},
    status_code=200,
    responses=answers(Purged, 400, 404, 409, says="Everything is gone."),
)
async def purge_queue(request: ApiRequest, queue: QueueName, data: PurgeBody) -> Response[Any]:
    """Remove everything the queue holds, leased messages included."""
    _check_confirm(queue, data.confirm)
    backend = request.context.backend
    actor = None if request.user is None else f"token:{request.user.name}"

    def remove() -> Answer:
        name = open_queue(backend, checked(queue)).name
        return Answer(200, Purged(purge(backend, name, confirm=name, reason=data.reason, actor=actor)))

    return await perform(request, remove)


@get(
    "/queues/{queue:str}/groups",
    opt={"scope": "read"},
    responses=answers(FailureGroupPage, 400, 404, says="The dead letters by what they died of."),
)
async def list_failure_groups(request: ApiRequest, queue: QueueName) -> Response[FailureGroupPage]:
    """Dead letters by what they died of, the largest group first."""
    backend = request.context.backend

    def look() -> FailureGroupPage:
        return failure_groups_page(failure_groups(backend, open_queue(backend, checked(queue)).name))

    return Response(await request.context.run(look))


def _check_confirm(queue: str, confirm: str) -> None:
    if confirm != queue:
        raise InvalidInput(
            f'confirm: {confirm!r} is not "{queue}"', field="confirm", remedy="Repeat the queue's name in `confirm`."
        )


def _spec(name: str, data: forms.QueueSettings) -> QueueSpec:
    settings: dict[str, Any] = msgspec.structs.asdict(data)
    if data.fifo is None:
        settings["fifo"] = name.endswith(".fifo")
    if isinstance(data.redrive_allow, list):
        settings["redrive_allow"] = tuple(data.redrive_allow)
    return QueueSpec(checked(name), **settings)


def _make(backend: Backend, spec: QueueSpec) -> tuple[bool, QueueDetail]:
    try:
        backend.queue_spec(spec.name)
        made = False
    except QueueNotFound:
        made = True
    backend.create_queue(spec)
    return made, queue_detail(backend, spec.name)


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
