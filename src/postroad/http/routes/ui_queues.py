"""`/ui/queues`: the queues, what each holds, and the forms that send, purge and delete."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlencode

from litestar import Response, get, post
from litestar.params import QueryParameter

from postroad.errors import PostroadError
from postroad.http import forms
from postroad.http.requests import ApiRequest, Cursor, Payload, QueueName
from postroad.http.routes.queues import (
    detail_of,
    peeked_page,
    purge_of,
    queue_page,
    remove_queue,
    send_entries,
)
from postroad.http.routes.ui import HTML, PAGE, form, shown
from postroad.queues import read_dead
from postroad.telemetry import counted
from postroad.views import problem

_ONE = "/ui/queues/{queue:str}"
NamePrefix = Annotated[str, QueryParameter(description="Only queues whose names begin so.")]
Done = Annotated[str, QueryParameter(description="What was done, in words.")]


@get("/ui/queues", **PAGE)
async def show_queues_page(
    request: ApiRequest, cursor: Cursor = None, name: NamePrefix = "", deleted: Done = ""
) -> Response[str]:
    """List the queues."""
    context = request.context
    doc = await queue_page(request, limit=50, cursor=cursor, prefix=name)
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


@get(_ONE, **PAGE)
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
    return await _page(request, queue, cursor=cursor, payload=payload == 1, done=done)


async def _page(
    request: ApiRequest,
    queue: str,
    *,
    cursor: str | None = None,
    payload: bool = False,
    done: str = "",
    error: PostroadError | None = None,
) -> Response[str]:
    context = request.context
    doc = await detail_of(request, queue)
    messages = await peeked_page(request, queue, 20, cursor, bodies=payload)
    dead = {each.message_id: read_dead(each.attributes) for each in messages.items}
    return shown(
        request,
        "queue",
        status=200 if error is None else error.status,
        current="queues",
        doc=doc,
        messages=messages,
        errors={name: found.error or found.reason for name, found in dead.items() if found is not None},
        payload=payload,
        rate=context.overviews.rates.of(doc.name, context.clock.monotonic()),
        done=done,
        problem=None if error is None else problem(error, request_id=request.request_id),
    )


@post(f"{_ONE}/messages", **form("publish"))
async def send_by_form(request: ApiRequest, queue: QueueName) -> Response[str]:
    """Send one message."""
    given = await request.fields()
    entry = forms.Message(given.get("body", ""), {}, given.get("group") or None, given.get("dedup_id") or None)
    answer = await request.context.run(lambda: send_entries(request.context.backend, queue, [entry]))
    [result] = answer.document.results
    if not result.ok:
        return shown(request, "error", status=400, problem=_entry(request, result.error))
    return _back(queue, sent=result.message_id)


@post(f"{_ONE}/purge", **form("admin"))
async def purge_by_form(request: ApiRequest, queue: QueueName) -> Response[str]:
    """Delete all messages, if the form repeats the name and says why."""
    given = await request.fields()
    data = forms.Purge(given.get("confirm", ""), given.get("reason", ""))
    try:
        purged = await request.context.run(lambda: purge_of(request, queue, data))
    except PostroadError as error:
        return await _page(request, queue, error=error)
    return _back(queue, purged=purged.purged)


@post(f"{_ONE}/delete", **form("admin"))
async def delete_by_form(request: ApiRequest, queue: QueueName) -> Response[str]:
    """Delete the queue, if the form repeats its name."""
    given = await request.fields()
    try:
        await remove_queue(request, queue, given.get("confirm", ""))
    except PostroadError as error:
        return await _page(request, queue, error=error)
    request.note("queue.delete", queue, reason=given.get("reason", ""))
    return Response("", status_code=303, headers={"Location": f"/ui/queues?deleted={quote(queue)}"}, media_type=HTML)


def _entry(request: ApiRequest, error: Any) -> dict[str, Any]:
    return {"title": error.title, "detail": error.detail, "remedy": error.remedy, "status": 400} | {
        "request_id": request.request_id
    }


def _back(queue: str, **done: Any) -> Response[str]:
    location = f"/ui/queues/{quote(queue)}?{urlencode(done)}"
    return Response("", status_code=303, headers={"Location": location}, media_type=HTML)
