"""`/queues`: creating, listing, emptying and deleting queues, sending messages and peeking at them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response

from postroad.errors import InvalidCursor, InvalidInput, InvalidMessage, QueueNotFound
from postroad.http import forms
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import answers, example, route
from postroad.http.requests import ApiRequest, Confirm, Cursor, Limit, Payload, QueueName, actor_of, checked, one_page
from postroad.operations import failure_groups, purge
from postroad.queues import OutgoingMessage, PeekedMessage, Queue, QueueSpec, SendResult, check_message
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
    forms.QueueSettings, example({"visibility": 60, "dead_letter": "orders-dlq", "max_receives": 5})
]
PurgeBody = Annotated[forms.Purge, example({"confirm": "orders", "reason": "test data"})]
MessagesBody = Annotated[forms.Messages, example({"messages": [{"body": "hello", "attributes": {"kind": "greeting"}}]})]
_ONE = "/queues/{queue:str}"
_PEEK_AT_ONCE = 500


@route("GET /queues", "read", QueuePage)
async def list_queues(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[QueuePage]:
    """List all queues by name, a page at a time."""
    return Response(await queue_page(request, limit, cursor))


async def queue_page(request: ApiRequest, limit: int, cursor: str | None, prefix: str = "") -> QueuePage:
    """Return one page of the queues whose names begin with `prefix`."""
    backend = request.context.backend

    def find(after: str | None) -> tuple[list[Any], str | None]:
        names = backend.queue_names(prefix=prefix, after=after or "", limit=limit + 1)
        # A queue that is deleted meanwhile is left out.
        rows = [queue_row(found) for found in backend.overviews(names[:limit])]
        return rows, names[limit - 1] if len(names) > limit else None

    return await one_page(request, QueuePage, f"queues/{prefix}" if prefix else "queues", cursor, find)


@route(f"GET {_ONE}", "read", QueueDetail, 404)
async def show_queue(request: ApiRequest, queue: QueueName) -> Response[QueueDetail]:
    """Show a queue with its settings, and the queues whose dead letters it receives."""
    return Response(await detail_of(request, queue))


async def detail_of(request: ApiRequest, queue: str) -> QueueDetail:
    """Return one queue."""
    return await request.context.run(lambda: queue_detail(request.context.backend, checked(queue)))


@route(
    f"PUT {_ONE}",
    "admin",
    QueueDetail,
    *(404, 409),
    says="The queue existed with the same settings.",
    also=answers(QueueDetail, status=201, says="The queue was created."),
)
async def put_queue(request: ApiRequest, queue: QueueName, data: SettingsBody) -> Response[QueueDetail]:
    """Create the queue. It may exist with the same settings; other settings are a conflict."""
    backend = request.context.backend
    settings: dict[str, Any] = msgspec.structs.asdict(data)
    if data.fifo is None:
        settings["fifo"] = queue.endswith(".fifo")
    if isinstance(data.redrive_allow, list):
        settings["redrive_allow"] = tuple(data.redrive_allow)
    spec = QueueSpec(checked(queue), **settings)

    def create() -> tuple[bool, QueueDetail]:
        try:
            backend.queue_spec(spec.name)
            created = False
        except QueueNotFound:
            created = True
        backend.create_queue(spec)
        return created, queue_detail(backend, spec.name)

    created, document = await request.context.run(create)
    return Response(document, status_code=201 if created else 200)


@route(f"DELETE {_ONE}", "admin", None, 404, status=204)
async def delete_queue(request: ApiRequest, queue: QueueName, confirm: Confirm = "") -> None:
    """Delete the queue with its messages; `confirm` repeats its name."""
    await remove_queue(request, queue, confirm)


async def remove_queue(request: ApiRequest, queue: str, confirm: str) -> None:
    """Delete the queue if `confirm` is its name."""
    _check_confirm(queue, confirm)
    backend = request.context.backend

    def remove() -> None:
        try:
            backend.delete_queue(checked(queue))
        except QueueNotFound as error:
            raise queue_not_found(backend, queue) from error

    await request.context.run(remove)


@route(f"POST {_ONE}/purge", "admin", Purged, 404, 409)
async def purge_queue(request: ApiRequest, queue: QueueName, data: PurgeBody) -> Response[Any]:
    """Delete all messages of the queue, leased ones included."""
    return await perform(request, lambda: Answer(200, purge_of(request, queue, data)))


def purge_of(request: ApiRequest, queue: str, data: forms.Purge) -> Purged:
    """Delete all messages of the queue if the form repeats its name."""
    _check_confirm(queue, data.confirm)
    backend = request.context.backend
    name = open_queue(backend, checked(queue)).name
    return Purged(purge(backend, name, confirm=name, reason=data.reason, actor=actor_of(request)))


@route(f"GET {_ONE}/groups", "read", FailureGroupPage, 404)
async def list_failure_groups(request: ApiRequest, queue: QueueName) -> Response[FailureGroupPage]:
    """Group dead letters by cause, the largest group first."""
    backend = request.context.backend

    def look() -> FailureGroupPage:
        return failure_groups_page(failure_groups(backend, open_queue(backend, checked(queue)).name))

    return Response(await request.context.run(look))


def _check_confirm(queue: str, confirm: str) -> None:
    if confirm != queue:
        raise InvalidInput(
            f'confirm: {confirm!r} is not "{queue}"', field="confirm", remedy="Repeat the queue's name in `confirm`."
        )


@route(f"POST {_ONE}/messages", "publish", SentBatch, 404, 409)
async def send_messages(request: ApiRequest, queue: QueueName, data: MessagesBody) -> Response[Any]:
    """Send up to 100 messages. An invalid one is answered `ok: false`; the others are sent."""
    return await perform(request, lambda: send_entries(request.context.backend, checked(queue), data.messages))


@route(f"GET {_ONE}/messages", "read", PeekedPage, 404)
async def peek_messages(
    request: ApiRequest, queue: QueueName, limit: Limit = 20, cursor: Cursor = None, payload: Payload = 0
) -> Response[PeekedPage]:
    """Peek at messages: neither their receive counts nor their visibility change."""
    return Response(await peeked_page(request, queue, limit, cursor, bodies=payload == 1))


async def peeked_page(request: ApiRequest, queue: str, limit: int, cursor: str | None, *, bodies: bool) -> PeekedPage:
    """Return one page of the messages. That somebody saw their bodies is recorded."""
    if bodies:
        request.note("queue.peek", queue, payload=True)

    def find(after: str | None) -> tuple[list[Any], str | None]:
        found = _peek_after(open_queue(request.context.backend, checked(queue)), after, limit=limit + 1)
        shown, following = found[:limit], None
        if len(found) > limit:
            # The sequence is needed if the message is gone when the next page is asked for.
            following = f"{shown[-1].message_id} {'' if shown[-1].sequence is None else shown[-1].sequence}"
        return [peeked(message, body=bodies) for message in shown], following

    return await one_page(request, PeekedPage, f"queues/{queue}/messages", cursor, find)


def _peek_after(queue: Queue, after: str | None, *, limit: int) -> list[PeekedMessage]:
    """Return the messages behind a position; None is the beginning."""
    if after is None:
        return queue.peek(limit=limit)
    message_id, _, sequence = after.partition(" ")
    try:
        return queue.peek(limit=limit, after=message_id)
    except InvalidInput as error:
        if not sequence:
            raise InvalidCursor("cursor: its message no longer exists", field="cursor") from error
        return _peek_from(queue, int(sequence), limit)


def _peek_from(queue: Queue, sequence: int, limit: int) -> list[PeekedMessage]:
    """Return the messages with a higher sequence, searched from the beginning."""
    found: list[PeekedMessage] = []
    after: str | None = None
    while len(found) < limit:
        try:
            messages = queue.peek(limit=_PEEK_AT_ONCE, after=after)
        except InvalidInput:
            found, after = [], None
            continue
        found += [message for message in messages if message.sequence is not None and message.sequence > sequence]
        if len(messages) < _PEEK_AT_ONCE:
            break
        after = messages[-1].message_id
    return found[:limit]


def send_entries(backend: Backend, name: str, entries: list[forms.Message]) -> Answer:
    """Send the messages, and answer the result of each."""
    try:
        # A body above the queue's limit is too large over HTTP; it is not stored as a blob.
        queue = backend.queue(name, overflow="fail")
    except QueueNotFound as error:
        raise queue_not_found(backend, name) from error
    messages = [OutgoingMessage(one.body, one.attributes, one.group, one.dedup_id, one.delay) for one in entries]
    try:
        results = queue.send(messages)
    except InvalidMessage:
        # One invalid message refused them all, and nothing was stored: send the others.
        spec = backend.queue_spec(name)
        refused = [_refusal(spec, message) for message in messages]
        valid = [message for message, result in zip(messages, refused, strict=True) if result is None]
        outcomes = iter(queue.send(valid) if valid else [])
        results = [next(outcomes) if result is None else result for result in refused]
    return Answer(200, SentBatch([sent(result) for result in results]))


def _refusal(spec: QueueSpec, message: OutgoingMessage) -> SendResult | None:
    try:
        check_message(spec, message)
    except InvalidMessage as error:
        return SendResult(ok=False, error=error)
    return None
