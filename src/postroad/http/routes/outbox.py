"""`/outbox`: what the outbox holds and holds back, repairs of events that failed, and the page of both."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.response import Redirect

from postroad.errors import InvalidInput, NotFound, PostroadError
from postroad.http import forms
from postroad.http.idempotency import perform_waiting
from postroad.http.openapi import example, route
from postroad.http.requests import ApiRequest, actor_of
from postroad.http.routes.ui import PAGE, filled, form, redirect, shown
from postroad.outbox import OutboxStatus
from postroad.telemetry import counted, recorded
from postroad.views import OutboxRedriven, OutboxSkipped, Page

_ID = "0190b5b8-0000-7000-8000-000000000001"
RedriveBody = Annotated[forms.OutboxRedrive, example({"event_ids": [_ID], "reason": "the topic is back"})]
SkipBody = Annotated[forms.OutboxSkip, example({"event_id": _ID, "reason": "refunded by hand"})]
Redriven = Annotated[int | None, QueryParameter(ge=0, description="How many events were redriven.")]
Skipped = Annotated[str, QueryParameter(description="The event that was given up.")]
_MOST_KEYS = 100
_TARGET = "outbox"


class OutboxKeyRow(msgspec.Struct):
    """A key that is held back: its first event that is not done, why, and how many wait behind it."""

    tenant_id: str | None
    lane: str
    head: str
    state: str
    reason: str
    waiting: int


class OutboxShown(msgspec.Struct):
    """What `outbox status` and `outbox keys` print."""

    status: OutboxStatus
    keys: Page[OutboxKeyRow]


@route("GET /outbox", "read", OutboxShown, 404)
async def show_outbox(request: ApiRequest) -> OutboxShown:
    """Count the events of the outbox, and list the keys that are held back."""
    access = request.context.outbox

    def look() -> OutboxShown:
        outbox = access.outbox
        keys = [OutboxKeyRow(**{**asdict(key), "head": str(key.head)}) for key in outbox.keys(limit=_MOST_KEYS)]
        return OutboxShown(outbox.status(), Page(keys, None))

    return await request.context.run(look)


@route("POST /outbox/redrive", "operate", OutboxRedriven, 404, 409)
async def redrive_outbox(request: ApiRequest, data: RedriveBody) -> Response[Any]:
    """Publish failed or parked events again, with their ids and in their order."""
    return await perform_waiting(request, lambda: request.context.run(lambda: _redrive(request, data)))


def _redrive(request: ApiRequest, data: forms.OutboxRedrive) -> OutboxRedriven:
    selection: dict[str, Any] = {"key": data.key, "tenant_id": data.tenant, "type": data.type, "group": data.group}
    outbox, by = request.context.outbox.outbox, actor_of(request)
    if not data.event_ids and not any(selection.values()):
        raise InvalidInput(
            "event_ids: nothing says which events",
            field="event_ids",
            remedy="Name event ids, a key, a tenant, a type or a group; nothing was changed.",
        )
    chosen = {"by": by, "reason": data.reason, "limit": data.limit, **selection}
    detail = {"reason": data.reason, "events": data.event_ids, **selection, "limit": data.limit}
    log = None if data.dry_run else request.context.backend.audit_log()
    with recorded(log, "outbox.redrive", _TARGET, detail, actor=by) as done:
        found = outbox.redrive(data.event_ids, canary=data.canary, dry_run=data.dry_run, **chosen)
        done["redriven"] = len(found)
    return OutboxRedriven([str(each) for each in found], dry_run=data.dry_run)


@route("POST /outbox/skip", "operate", OutboxSkipped, 404, 409)
async def skip_outbox(request: ApiRequest, data: SkipBody) -> Response[Any]:
    """Give up a failed or parked event: its key continues, and the next message of the key names the gap."""
    return await perform_waiting(request, lambda: request.context.run(lambda: _skip(request, data)))


def _skip(request: ApiRequest, data: forms.OutboxSkip) -> OutboxSkipped:
    outbox, by = request.context.outbox.outbox, actor_of(request)
    if outbox.get(data.event_id) is None:
        raise NotFound(f'the outbox has no event "{data.event_id[:100]}"', field="event_id")
    detail = {"reason": data.reason, "event": data.event_id}
    with recorded(request.context.backend.audit_log(), "outbox.skip", _TARGET, detail, actor=by):
        outbox.skip(data.event_id, by=by, reason=data.reason)
    return OutboxSkipped(data.event_id)


@get("/ui/outbox", **PAGE)
async def show_outbox_page(request: ApiRequest, redriven: Redriven = None, skipped: Skipped = "") -> Response[str]:
    """Show what waits in the outbox, and which keys are held back."""
    done = f"The event {skipped} was given up; its key goes on." if skipped else ""
    if redriven is not None:
        done = f"{counted(redriven, 'event')} will be published again."
    return await _page(request, done=done)


async def _page(request: ApiRequest, *, done: str = "", error: PostroadError | None = None) -> Response[str]:
    access = request.context.outbox
    doc: OutboxShown | None = None
    groups: list[Any] = []
    unavailable = ""
    if access.is_set:
        try:
            doc = await show_outbox.fn(request)
            groups = await request.context.run(lambda: access.outbox.failed_groups())
        except PostroadError as failure:
            unavailable = str(failure)
    return shown(request, "outbox", error=error, doc=doc, groups=groups, unavailable=unavailable, done=done)


@post("/ui/outbox/redrive", **form("operate"))
async def redrive_key(request: ApiRequest) -> Response[str] | Redirect:
    """Publish the failed and parked events of one key or one group again."""
    try:
        data = filled(await request.fields(), forms.OutboxRedrive, "key", "tenant", "group", "reason")
        done = await request.context.run(lambda: _redrive(request, data))
    except PostroadError as error:
        return await _page(request, error=error)
    return redirect("/ui/outbox", redriven=len(done.redriven))


@post("/ui/outbox/skip", **form("operate"))
async def skip_head(request: ApiRequest) -> Response[str] | Redirect:
    """Give one event up, so that its key goes on."""
    try:
        data = filled(await request.fields(), forms.OutboxSkip, "event_id", "reason")
        done = await request.context.run(lambda: _skip(request, data))
    except PostroadError as error:
        return await _page(request, error=error)
    return redirect("/ui/outbox", skipped=done.skipped)
