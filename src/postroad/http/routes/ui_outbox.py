"""`/ui/outbox`: what the outbox holds, the keys that are held back, and the forms that unblock them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from litestar import Response, get, post
from litestar.params import QueryParameter

from postroad.errors import PostroadError
from postroad.http import forms
from postroad.http.requests import ApiRequest
from postroad.http.routes.outbox import outbox_document, redrive_events, skip_event
from postroad.http.routes.ui import HTML, PAGE, form, shown
from postroad.telemetry import counted
from postroad.views import OutboxShown, problem

Redriven = Annotated[int | None, QueryParameter(ge=0, description="How many events were redriven.")]
Skipped = Annotated[str, QueryParameter(description="The event that was given up.")]


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
            doc = await outbox_document(request)
            groups = await request.context.run(lambda: access.outbox.failed_groups())
        except PostroadError as failure:
            unavailable = str(failure)
    return shown(
        request,
        "outbox",
        status=200 if error is None else error.status,
        doc=doc,
        groups=groups,
        unavailable=unavailable,
        done=done,
        problem=None if error is None else problem(error, request_id=request.request_id),
    )


@post("/ui/outbox/redrive", **form("operate"))
async def redrive_key(request: ApiRequest) -> Response[str]:
    """Publish the failed and parked events of one key or one group again."""
    try:
        data = await _filled_in(request, forms.OutboxRedrive, "key", "tenant", "group", "reason")
        done = await redrive_events(request, data)
    except PostroadError as error:
        return await _page(request, error=error)
    return _back(redriven=len(done.redriven))


@post("/ui/outbox/skip", **form("operate"))
async def skip_head(request: ApiRequest) -> Response[str]:
    """Give one event up, so that its key goes on."""
    try:
        done = await skip_event(request, await _filled_in(request, forms.OutboxSkip, "event_id", "reason"))
    except PostroadError as error:
        return await _page(request, error=error)
    return _back(skipped=done.skipped)


async def _filled_in(request: ApiRequest, into: Any, *names: str) -> Any:
    given = await request.fields()
    try:
        return msgspec.convert({name: given[name] for name in names if given.get(name)}, into)
    except msgspec.ValidationError as error:
        raise forms.misfit(str(error)) from None


def _back(**done: Any) -> Response[str]:
    location = f"/ui/outbox?{urlencode(done)}"
    return Response("", status_code=303, headers={"Location": location}, media_type=HTML)
