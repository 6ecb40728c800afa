"""`/ui/events`, `/ui/map`: the journal, the story of any id, and what events pass through."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote, urlencode

from litestar import Response, get
from litestar.params import PathParameter, QueryParameter
from litestar.response import Redirect

from postroad.dashboard import failure_of, map_drawing, next_of, place_of
from postroad.errors import InvalidInput
from postroad.http.requests import ApiRequest, Cursor
from postroad.http.routes.history import timeline_page
from postroad.http.routes.overview import map_document
from postroad.http.routes.service import story_of
from postroad.http.routes.ui import PAGE, shown
from postroad.views import problem

_ROWS: Final = 50
_MOST_LISTED: Final = 100
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
Text = Annotated[str | None, QueryParameter()]
Id = Annotated[str, PathParameter()]
EventType = Annotated[str | None, QueryParameter(name="type")]
From = Annotated[str | None, QueryParameter(name="from")]
WantedId = Annotated[str | None, QueryParameter(name="id")]


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
        return Redirect(f"/ui/events/{quote(wanted_id.strip(), safe='')}", status_code=303)
    given = {"tenant": tenant, "app": app, "type": event_type, "entity": entity, "from": from_time, "to": to}
    asked = {name: (value or "").strip() or None for name, value in given.items()}
    filters = {name: value for name, value in asked.items() if value}
    doc, wrong = None, None
    try:
        doc = await timeline_page(request, _ROWS, cursor, asked)
    except InvalidInput as error:
        wrong = problem(error, request_id=request.request_id)
    return shown(
        request,
        "events",
        status=200 if wrong is None else 400,
        doc=doc,
        problem=wrong,
        asked=asked,
        filtered=bool(filters),
        path=f"/ui/events?{urlencode(filters)}" if filters else "/ui/events",
        meaning=None if doc is None else _MEANINGS[doc.index],
        tenant=request.context.settings.tenant,
    )


@get("/ui/events/{name:str}", **PAGE)
async def event(request: ApiRequest, name: Id) -> Response[str]:
    """Show what happened to an event, message, push, task or job, and what would move it on."""
    story = await story_of(request, name)
    return shown(request, "event", current="events", doc=story, failure=failure_of(story), next=next_of(story))


@get("/ui/map", **PAGE)
async def system_map(request: ApiRequest) -> Response[str]:
    """Draw what events pass through."""
    document = await map_document(request, whole=False)
    drawing, rest = await request.context.run(lambda: map_drawing(document))
    queues = len((await request.context.overviews.measured()).queues)
    left_out = queues - sum(node.kind in ("queue", "dead_letter") for node in document.nodes)
    left = left_out + max(0, len(rest) - _MOST_LISTED)
    return shown(request, "map", drawing=drawing, rest=rest[:_MOST_LISTED], rest_left=left, place_of=place_of)
