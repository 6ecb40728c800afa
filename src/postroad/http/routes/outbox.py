"""`/outbox`: what the outbox holds and holds back, and repairs of events that failed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from litestar import Response

from postroad.errors import InvalidInput, NotFound
from postroad.http import forms
from postroad.http.idempotency import Answer, perform_waiting
from postroad.http.openapi import example, route
from postroad.http.requests import ApiRequest, actor_of
from postroad.telemetry import recorded
from postroad.views import OutboxKeyPage, OutboxKeyRow, OutboxRedriven, OutboxShown, OutboxSkipped, OutboxStatusShown

_ID = "0190b5b8-0000-7000-8000-000000000001"
RedriveBody = Annotated[forms.OutboxRedrive, example({"event_ids": [_ID], "reason": "the topic is back"})]
SkipBody = Annotated[forms.OutboxSkip, example({"event_id": _ID, "reason": "refunded by hand"})]
_MOST_KEYS = 100
_TARGET = "outbox"


@route("GET /outbox", "read", OutboxShown, 404)
async def show_outbox(request: ApiRequest) -> Response[OutboxShown]:
    """Count the events of the outbox, and list the keys that are held back."""
    return Response(await outbox_document(request))


async def outbox_document(request: ApiRequest) -> OutboxShown:
    """Return what the outbox holds; raise `RouteNotFound` if none is set."""
    access = request.context.outbox

    def look() -> OutboxShown:
        outbox = access.outbox
        keys = [OutboxKeyRow(**{**asdict(key), "head": str(key.head)}) for key in outbox.keys(limit=_MOST_KEYS)]
        return OutboxShown(OutboxStatusShown(**asdict(outbox.status())), OutboxKeyPage(keys, None))

    return await request.context.run(look)


@route("POST /outbox/redrive", "operate", OutboxRedriven, 404, 409)
async def redrive_outbox(request: ApiRequest, data: RedriveBody) -> Response[Any]:
    """Publish failed or parked events again, with their ids and in their order."""

    async def effect() -> Answer:
        return Answer(200, await redrive_events(request, data))

    return await perform_waiting(request, effect)


async def redrive_events(request: ApiRequest, data: forms.OutboxRedrive) -> OutboxRedriven:
    """Redrive what the form names."""
    selection: dict[str, Any] = {"key": data.key, "tenant_id": data.tenant, "type": data.type, "group": data.group}
    if not data.event_ids and not any(selection.values()):
        raise InvalidInput(
            "event_ids: nothing says which events",
            field="event_ids",
            remedy="Name event ids, a key, a tenant, a type or a group; nothing was changed.",
        )
    context, by = request.context, actor_of(request)
    selection["limit"] = data.limit

    def redrive() -> OutboxRedriven:
        outbox = context.outbox.outbox
        if data.dry_run:
            found = outbox.redrive(data.event_ids, by=by, reason=data.reason, dry_run=True, **selection)
            return OutboxRedriven([str(each) for each in found], dry_run=True)
        detail = {"reason": data.reason, "events": data.event_ids, "request_id": request.request_id, **selection}
        with recorded(context.backend.audit_log(), "outbox.redrive", _TARGET, detail, actor=by) as done:
            found = outbox.redrive(data.event_ids, by=by, reason=data.reason, canary=data.canary, **selection)
            done["redriven"] = len(found)
        return OutboxRedriven([str(each) for each in found], dry_run=False)

    return await context.run(redrive)


@route("POST /outbox/skip", "operate", OutboxSkipped, 404, 409)
async def skip_outbox(request: ApiRequest, data: SkipBody) -> Response[Any]:
    """Give up a failed or parked event: its key continues, and the next message of the key names the gap."""

    async def effect() -> Answer:
        return Answer(200, await skip_event(request, data))

    return await perform_waiting(request, effect)


async def skip_event(request: ApiRequest, data: forms.OutboxSkip) -> OutboxSkipped:
    """Skip the event that the form names."""
    context, by = request.context, actor_of(request)

    def skip() -> OutboxSkipped:
        outbox = context.outbox.outbox
        if outbox.get(data.event_id) is None:
            raise NotFound(f'the outbox has no event "{data.event_id[:100]}"', field="event_id")
        detail = {"reason": data.reason, "event": data.event_id, "request_id": request.request_id}
        with recorded(context.backend.audit_log(), "outbox.skip", _TARGET, detail, actor=by):
            outbox.skip(data.event_id, by=by, reason=data.reason)
        return OutboxSkipped(data.event_id)

    return await context.run(skip)
