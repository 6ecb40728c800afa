"""`/queues`: creating, listing, emptying and deleting queues, sending messages, peeking at them, and their pages."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.response import Redirect

from postroad.errors import InvalidCursor, InvalidInput, InvalidMessage, PostroadError, QueueNotFound
from postroad.http import forms
from postroad.http.context import Context
from postroad.http.idempotency import perform
from postroad.http.openapi import answers, example, route
from postroad.http.requests import ApiRequest, Confirm, Cursor, Limit, Payload, QueueName, actor_of, checked, page
from postroad.http.routes.ui import PAGE, form, redirect, shown
from postroad.operations import failure_groups, purge
from postroad.queues import OutgoingMessage, QueueSpec, SendResult, check_message, read_dead
from postroad.telemetry import counted
from postroad.views import (
    FailureGroupPage,
    Page,
    PeekedRow,
    Purged,
    QueueDetail,
    QueueRow,
    SentBatch,
    failure_groups_page,
    open_queue,
    peeked,
    queue_detail,
    queue_not_found,
    queue_row,
    sent,
)

SettingsBody = Annotated[
    forms.QueueSettings, example({"visibility": 60, "dead_letter": "orders-dlq", "max_receives": 5})
]
PurgeBody = Annotated[forms.Purge, example({"confirm": "orders", "reason": "test data"})]
MessagesBody = Annotated[forms.Messages, example({"messages": [{"body": "hello", "attributes": {"kind": "greeting"}}]})]
NamePrefix = Annotated[str, QueryParameter(description="Only queues whose names begin so.")]
Done = Annotated[str, QueryParameter(description="What was done, in words.")]
_ONE = "/queues/{queue:str}"
_UI = "/ui/queues/{queue:str}"


@route("GET /queues", "read", Page[QueueRow])
async def list_queues(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Page[QueueRow]:
    """List all queues by name, a page at a time."""
    return await _queue_page(request, limit, cursor)


async def _queue_page(request: ApiRequest, limit: int, cursor: str | None, prefix: str = "") -> Page[QueueRow]:
    """Return one page of the queues whose names begin with `prefix`."""
    backend = request.context.backend

    def find(after: str | None) -> tuple[list[QueueRow], str | None]:
        names = backend.queue_names(prefix=prefix, after=after or "", limit=limit + 1)
        # A queue that is deleted meanwhile is left out.
        rows = [queue_row(found) for found in backend.overviews(names[:limit])]
        return rows, names[limit - 1] if len(names) > limit else None

    return await page(request, f"queues/{prefix}" if prefix else "queues", cursor, find)


@route(f"GET {_ONE}", "read", QueueDetail, 404)
async def show_queue(request: ApiRequest, queue: QueueName) -> QueueDetail:
    """Show a queue with its settings, and the queues whose dead letters it receives."""
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
    return await perform(request, lambda: _purge(request, queue, data))


def _purge(request: ApiRequest, queue: str, data: forms.Purge) -> Purged:
    """Delete all messages of the queue if the form repeats its name."""
    _check_confirm(queue, data.confirm)
    backend = request.context.backend
    name = open_queue(backend, checked(queue)).name
    return Purged(purge(backend, name, confirm=name, reason=data.reason, actor=actor_of(request)))


@route(f"GET {_ONE}/groups", "read", FailureGroupPage, 404)
async def list_failure_groups(request: ApiRequest, queue: QueueName) -> FailureGroupPage:
    """Group dead letters by cause, the largest group first."""
    backend = request.context.backend

    def look() -> FailureGroupPage:
        return failure_groups_page(failure_groups(backend, open_queue(backend, checked(queue)).name))

    return await request.context.run(look)


def _check_confirm(queue: str, confirm: str) -> None:
    if confirm != queue:
        raise InvalidInput(
            f'confirm: {confirm!r} is not "{queue}"', field="confirm", remedy="Repeat the queue's name in `confirm`."
        )


@route(f"POST {_ONE}/messages", "publish", SentBatch, 404, 409)
async def send_messages(request: ApiRequest, queue: QueueName, data: MessagesBody) -> Response[Any]:
    """Send up to 100 messages. An invalid one is answered `ok: false`; the others are sent."""

    def effect() -> SentBatch:
        results = _send(request.context, checked(queue), data.messages)
        return SentBatch([sent(result) for result in results])

    return await perform(request, effect)


@route(f"GET {_ONE}/messages", "read", Page[PeekedRow], 404)
async def peek_messages(
    request: ApiRequest, queue: QueueName, limit: Limit = 20, cursor: Cursor = None, payload: Payload = 0
) -> Page[PeekedRow]:
    """Peek at messages: neither their receive counts nor their visibility change."""
    bodies = payload == 1
    if bodies:
        # That somebody saw them is recorded.
        request.note("queue.peek", queue, payload=True)

    def find(after: str | None) -> tuple[list[PeekedRow], str | None]:
        source = open_queue(request.context.backend, checked(queue))
        try:
            found = source.peek(limit=limit + 1, after=after)
        except InvalidInput as error:
            raise InvalidCursor("cursor: its message no longer exists", field="cursor") from error
        shown, following = found[:limit], None
        if len(found) > limit:
            # The file goes on behind a sequence, although its message may be gone when the next page is asked for.
            last = shown[-1]
            following = str(last.sequence) if source.traits.peeks_clean else last.message_id
        return [peeked(message, body=bodies) for message in shown], following

    return await page(request, f"queues/{queue}/messages", cursor, find)


def _send(context: Context, name: str, entries: list[forms.Message]) -> list[SendResult]:
    """Send the messages, and return the result of each."""
    messages = [OutgoingMessage(one.body, one.attributes, one.group, one.dedup_id, one.delay) for one in entries]
    queue = context.queues.queue(name)
    try:
        return queue.send(messages)
    except (InvalidMessage, QueueNotFound):
        # Nothing was stored: one invalid message refused them all, or the queue was deleted. Send the valid ones.
        queue = context.queues.again(name)
    spec = context.backend.queue_spec(name)
    refused = [_refusal(spec, message) for message in messages]
    valid = [message for message, result in zip(messages, refused, strict=True) if result is None]
    outcomes = iter(queue.send(valid) if valid else [])
    return [next(outcomes) if result is None else result for result in refused]


def _refusal(spec: QueueSpec, message: OutgoingMessage) -> SendResult | None:
    try:
        check_message(spec, message)
    except InvalidMessage as error:
        return SendResult(ok=False, error=error)
    return None


@get("/ui/queues", **PAGE)
async def show_queues_page(
    request: ApiRequest, cursor: Cursor = None, name: NamePrefix = "", deleted: Done = ""
) -> Response[str]:
    """List the queues."""
    context = request.context
    doc = await _queue_page(request, 50, cursor, prefix=name)
    rates, now = context.overviews.rates, context.clock.monotonic()
    return shown(
        request,
        "queues",
        doc=doc,
        name=name,
        done=f"The queue {deleted} was deleted." if deleted else "",
        rates={each.name: rates.of(each.name, now) for each in doc.items},
        dead_letter_queues=(await context.overviews.measured()).dead_letter_queues,
    )


@get(_UI, **PAGE)
async def show_queue_page(
    request: ApiRequest,
    queue: QueueName,
    cursor: Cursor = None,
    payload: Payload = 0,
    sent: Done = "",
    purged: Annotated[int | None, QueryParameter(ge=0, description="How many messages were deleted.")] = None,
) -> Response[str]:
    """Show what a queue is and holds."""
    done = f"Sent message {sent}." if sent else ""
    if purged is not None:
        done = f"Purged: {counted(purged, 'message')} deleted."
    return await _page(request, queue, cursor=cursor, payload=payload, done=done)


async def _page(
    request: ApiRequest,
    queue: str,
    *,
    cursor: str | None = None,
    payload: int = 0,
    done: str = "",
    error: PostroadError | None = None,
) -> Response[str]:
    context = request.context
    doc = await show_queue.fn(request, queue)
    messages = await peek_messages.fn(request, queue, 20, cursor, payload)
    dead = {each.message_id: read_dead(each.attributes) for each in messages.items}
    return shown(
        request,
        "queue",
        error=error,
        current="queues",
        doc=doc,
        messages=messages,
        errors={name: found.error or found.reason for name, found in dead.items() if found is not None},
        payload=payload,
        rate=context.overviews.rates.of(doc.name, context.clock.monotonic()),
        done=done,
    )


@post(f"{_UI}/messages", **form("publish"))
async def send_by_form(request: ApiRequest, queue: QueueName) -> Redirect:
    """Send one message."""
    given = await request.fields()
    entry = forms.Message(given.get("body", ""), {}, given.get("group") or None, given.get("dedup_id") or None)
    [result] = await request.context.run(lambda: _send(request.context, queue, [entry]))
    if result.error is not None:
        raise result.error
    return redirect("/ui/queues", queue, sent=result.message_id)


@post(f"{_UI}/purge", **form("admin"))
async def purge_by_form(request: ApiRequest, queue: QueueName) -> Response[str] | Redirect:
    """Delete all messages, if the form repeats the name and says why."""
    given = await request.fields()
    data = forms.Purge(given.get("confirm", ""), given.get("reason", ""))
    try:
        purged = await request.context.run(lambda: _purge(request, queue, data))
    except PostroadError as error:
        return await _page(request, queue, error=error)
    return redirect("/ui/queues", queue, purged=purged.purged)


@post(f"{_UI}/delete", **form("admin"))
async def delete_by_form(request: ApiRequest, queue: QueueName) -> Response[str] | Redirect:
    """Delete the queue, if the form repeats its name."""
    given = await request.fields()
    try:
        await delete_queue.fn(request, queue, given.get("confirm", ""))
    except PostroadError as error:
        return await _page(request, queue, error=error)
    request.note("queue.delete", queue, reason=given.get("reason", ""))
    return redirect("/ui/queues", deleted=queue)
