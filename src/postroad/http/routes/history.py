"""`/timeline`, `/why` and `/audit`: the journal, the story of any id, and who changed what; and their pages."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from litestar import Response, get
from litestar.params import PathParameter, QueryParameter
from litestar.response import Redirect

from postroad.dashboard import failure_of, next_of
from postroad.errors import InvalidInput
from postroad.http.openapi import route
from postroad.http.requests import ApiRequest, Cursor, Limit, page
from postroad.http.routes.ui import PAGE, Id, Text, redirect, shown
from postroad.journal import Story, entity_of, index_for, milliseconds_of
from postroad.operations import AuditRecord, why
from postroad.views import Page, Timeline, timeline

_LONGEST_ID: Final = 1_024
_ROWS: Final = 50
_MEANINGS: Final = {
    "PK": "all events of the tenant",
    "GSI1": "by entity",
    "GSI2": "by app",
    "GSI3": "by app and entity",
    "GSI4": "by type",
    "GSI5": "by type and entity",
    "GSI6": "by type and app",
    "GSI7": "by type, app and entity",
}
Tenant = Annotated[str | None, QueryParameter(description="The tenant; by default that of the settings.")]
App = Annotated[str | None, QueryParameter(description="Only events of this app.")]
EventType = Annotated[str | None, QueryParameter(name="type", description="Only events of this type: Task Failed.")]
EntityText = Annotated[str | None, QueryParameter(description="Only events of this task or job: TASK#id or JOB#id.")]
From = Annotated[
    str | None, QueryParameter(name="from", description="The earliest time: ISO 8601 or milliseconds since 1970.")
]
To = Annotated[str | None, QueryParameter(description="The latest time.")]
Named = Annotated[str, PathParameter(description="The id of an event, a message, a push, a task or a job.")]
WantedId = Annotated[str | None, QueryParameter(name="id")]


@route("GET /timeline", "read", Timeline)
async def search_journal(
    request: ApiRequest,
    limit: Limit = 20,
    cursor: Cursor = None,
    tenant: Tenant = None,
    app: App = None,
    event_type: EventType = None,
    entity: EntityText = None,
    from_time: From = None,
    to: To = None,
) -> Timeline:
    """Search the journal, newest first; the answer names the index that was used."""
    filters = {"tenant": tenant, "app": app, "type": event_type, "entity": entity, "from": from_time, "to": to}
    return await _timeline(request, limit, cursor, filters)


async def _timeline(request: ApiRequest, limit: int, cursor: str | None, filters: dict[str, str | None]) -> Timeline:
    """Return a page of the journal. `filters` has the names of the parameters; an empty one is left out."""
    given = {name: _checked(name, value) for name, value in filters.items() if value}
    asked: dict[str, Any] = {
        "entity": entity_of(given.get("entity")),
        "app": given.get("app"),
        "event_type": given.get("type"),
    }
    start, end = (milliseconds_of(given.get(name), name) for name in ("from", "to"))
    index, context = index_for(**asked), request.context
    tenant = given.get("tenant") or context.settings.tenant

    def find(after: str | None) -> tuple[list[Any], str | None]:
        journal = context.backend.journal()
        events = journal.query(
            index, **asked, tenant=tenant, start=start, end=end, descending=True, limit=limit, cursor=after
        )
        found = timeline(index, events)
        return found.items, found.next_cursor

    of = "/".join(["timeline", tenant, *(f"{name}={value}" for name, value in sorted(given.items()))])
    shown = await page(request, of, cursor, find)
    return Timeline(index, shown.items, shown.next_cursor)


def _checked(name: str, value: str) -> str:
    if len(value) > _LONGEST_ID:
        raise InvalidInput(f"{name}: has more than {_LONGEST_ID} characters", field=name)
    return value


@get("/ui/events", **PAGE)
async def journal(
    request: ApiRequest,
    cursor: Cursor = None,
    tenant: Text = None,
    app: Text = None,
    event_type: EventType = None,
    entity: Text = None,
    from_time: From = None,
    to: Text = None,
    wanted_id: WantedId = None,
) -> Response[str] | Redirect:
    """Search the journal, or go to the story of an id."""
    if wanted_id and wanted_id.strip():
        return redirect("/ui/events", wanted_id.strip())
    given = {"tenant": tenant, "app": app, "type": event_type, "entity": entity, "from": from_time, "to": to}
    asked = {name: (value or "").strip() or None for name, value in given.items()}
    filters = {name: value for name, value in asked.items() if value}
    doc, wrong = None, None
    try:
        doc = await _timeline(request, _ROWS, cursor, asked)
    except InvalidInput as error:
        wrong = error
    return shown(
        request,
        "events",
        error=wrong,
        doc=doc,
        asked=asked,
        filtered=bool(filters),
        path=f"/ui/events?{urlencode(filters)}" if filters else "/ui/events",
        meaning=None if doc is None else _MEANINGS[doc.index],
        tenant=request.context.settings.tenant,
    )


@route("GET /why/{name:str}", "read", Story, 404, says="What happened, and what is next.")
async def explain_state(request: ApiRequest, name: Named) -> Story:
    """Explain what happened to an event, message, push, task or job, its state, and what would continue it."""
    context, agents = request.context, request.agents
    settings = context.settings
    look = partial(why, context.backend, name, tenant=settings.tenant, app=settings.app, agents=lambda: agents.store)
    return await context.run(look)


@get("/ui/events/{name:str}", **PAGE)
async def event(request: ApiRequest, name: Id) -> Response[str]:
    """Show what happened to an event, message, push, task or job, and what would move it on."""
    story = await explain_state.fn(request, name)
    return shown(request, "event", current="events", doc=story, failure=failure_of(story), next=next_of(story))


@route("GET /audit", "admin", Page[AuditRecord])
async def list_audit(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Page[AuditRecord]:
    """List who changed what, newest first, a page at a time."""
    log = request.context.backend.audit_log()

    def find(before: str | None) -> tuple[list[AuditRecord], str | None]:
        found = [] if log is None else log.newest(limit + 1, before=None if before is None else int(before))
        return found[:limit], str(found[limit - 1].seq) if len(found) > limit else None

    return await page(request, "audit", cursor, find)


@get("/ui/audit", **{**PAGE, "opt": {**PAGE["opt"], "scope": "admin"}})
async def show_audit_page(request: ApiRequest, cursor: Cursor = None) -> Response[str]:
    """List who changed what, newest first."""
    return shown(request, "audit", doc=await list_audit.fn(request, _ROWS, cursor))
