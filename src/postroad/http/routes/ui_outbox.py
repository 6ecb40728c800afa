"""`/ui/outbox`: what the outbox holds, the keys that are held back, and the forms that unblock them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import QueryParameter

from postroad.errors import InvalidInput, PostroadError
from postroad.http.requests import ApiRequest, actor_of
from postroad.http.routes.ui import HTML, PAGE, form, shown
from postroad.outbox import KeyState, Outbox, OutboxStatus
from postroad.telemetry import counted, recorded
from postroad.views import problem

_MOST_KEYS = 100
Redriven = Annotated[int | None, QueryParameter(ge=0, description="How many events were redriven.")]
Skipped = Annotated[str, QueryParameter(description="The event that was given up.")]


@get("/ui/outbox", **PAGE)
async def outbox(request: ApiRequest, redriven: Redriven = None, skipped: Skipped = "") -> Response[str]:
    """Show what waits in the outbox, and which keys are held back."""
    done = f"The event {skipped} was given up; its key goes on." if skipped else ""
    if redriven is not None:
        done = f"{counted(redriven, 'event')} will be published again."
    return await _page(request, done=done)


async def _page(request: ApiRequest, *, done: str = "", error: PostroadError | None = None) -> Response[str]:
    access = request.context.outbox

    def look() -> tuple[OutboxStatus | str | None, list[KeyState], list[Any]]:
        status = access.status()
        if not isinstance(status, OutboxStatus):
            return status, [], []
        return status, access.outbox.keys(limit=_MOST_KEYS), access.outbox.failed_groups()

    status, keys, groups = await request.context.run(look)
    return shown(
        request,
        "outbox",
        status=200 if error is None else error.status,
        doc=status if isinstance(status, OutboxStatus) else None,
        unavailable=status if isinstance(status, str) else "",
        keys=keys,
        groups=groups,
        done=done,
        problem=None if error is None else problem(error, request_id=request.request_id),
    )


@post("/ui/outbox/redrive", **form("operate"))
async def redrive_key(request: ApiRequest) -> Response[str]:
    """Publish the failed and parked events of one key or one group again."""
    given = await request.fields()
    chosen = {name: value for name in ("key", "tenant_id", "group") if (value := given.get(name))}

    def redrive(box: Outbox, reason: str) -> dict[str, Any]:
        return {"redriven": len(box.redrive(by=actor_of(request), reason=reason, **chosen))}

    return await _changed(request, "outbox.redrive", chosen, redrive)


@post("/ui/outbox/skip", **form("operate"))
async def skip_event(request: ApiRequest) -> Response[str]:
    """Give one event up, so that its key goes on."""
    event_id = (await request.fields()).get("event_id", "")

    def skip(box: Outbox, reason: str) -> dict[str, Any]:
        box.skip(event_id, by=actor_of(request), reason=reason)
        return {"skipped": event_id}

    return await _changed(request, "outbox.skip", {"event_id": event_id}, skip)


async def _changed(request: ApiRequest, action: str, detail: dict[str, Any], change: Any) -> Response[str]:
    reason = (await request.fields()).get("reason", "").strip()
    context = request.context

    def run() -> dict[str, Any]:
        if not reason:
            raise InvalidInput("reason: is empty", field="reason", remedy="Say why; nothing was changed.")
        with recorded(
            context.backend.audit_log(), action, "outbox", {**detail, "reason": reason}, actor=actor_of(request)
        ) as done:
            result: dict[str, Any] = change(context.outbox.outbox, reason)
            done |= result
        return result

    try:
        result = await context.run(run)
    except PostroadError as error:
        return await _page(request, error=error)
    location = f"/ui/outbox?{urlencode(result)}"
    return Response("", status_code=303, headers={"Location": location}, media_type=HTML)
