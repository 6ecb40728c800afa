"""`/ui/`, `/ui/health` and `/ui/audit`: whether anything is wrong, what runs, and who changed what."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlencode

from litestar import Response, get
from litestar.params import QueryParameter

from postroad.dashboard import flow, level
from postroad.http.overview import Measured
from postroad.http.requests import ApiRequest, Cursor
from postroad.http.routes.demo import demo_shown
from postroad.http.routes.history import audit_page
from postroad.http.routes.ui import HTML, PAGE, shown
from postroad.http.samples import LONGEST_SECONDS
from postroad.queues import QueueOverview
from postroad.tasks import HealthCheck
from postroad.views import queue_row

_BUSIEST = 8
_MOST_TASKS = 100
ChartWindow = Annotated[
    int, QueryParameter(name="window", ge=10, le=LONGEST_SECONDS, description="The seconds that the charts show.")
]
Wanted = Annotated[str, QueryParameter(description="The name of a queue, its beginning, or an id.")]


@get("/ui", **PAGE)
async def show_overview_page(request: ApiRequest, window: ChartWindow = 3_600) -> Response[str]:
    """Show whether anything is wrong, what, since when, and where to click."""
    context = request.context
    measured = await context.overviews.measured()
    doc = context.overviews.compose(measured, window)
    waiting = doc.backlog.visible + doc.backlog.in_flight + doc.backlog.delayed
    now, rates = context.clock.monotonic(), context.overviews.rates
    queues = [queue_row(each) for each in busiest(request, measured)]
    return shown(
        request,
        "overview",
        doc=doc,
        demo=await request.context.run(lambda: demo_shown(request)) if request.context.demo else None,
        charts=(
            flow("sent", "Sent", doc.series.sent, window),
            flow("acked", "Acked", doc.series.acked, window),
            level("backlog", "Backlog", context.overviews.backlog(window), waiting),
        ),
        queues=queues,
        dead_letter_queues=measured.dead_letter_queues,
        rates={each.name: rates.of(each.name, now) for each in queues},
        parts_shown=list(context.parts),
    )


def busiest(request: ApiRequest, measured: Measured) -> list[QueueOverview]:
    """Return the queues to which most was sent of late, then those that hold most."""
    names = [*request.context.overviews.rates.busiest(_BUSIEST), *(each.spec.name for each in measured.largest)]
    known = (measured.by_name.get(name) for name in dict.fromkeys(names))
    return [each for each in known if each is not None][:_BUSIEST]


@get("/ui/find", **PAGE)
async def find(request: ApiRequest, q: Wanted = "") -> Response[str]:
    """Go to the queue of this name, to the queues whose names begin so, or to the story of this id."""
    wanted, backend = q.strip(), request.context.backend
    names = await request.context.run(backend.queues)
    if wanted in names or not wanted:
        location = f"/ui/queues/{quote(wanted, safe='')}" if wanted else "/ui/queues"
    elif any(name.startswith(wanted) for name in names):
        location = f"/ui/queues?{urlencode({'name': wanted})}"
    else:
        location = f"/ui/events/{quote(wanted, safe='')}"
    return Response("", status_code=303, headers={"Location": location}, media_type=HTML)


@get("/ui/health", **PAGE)
async def show_health_page(request: ApiRequest) -> Response[str]:
    """Show the parts of this server, and the running tasks that are silent or run too long."""
    context, settings = request.context, request.context.settings
    check = HealthCheck(context.backend, tenant_id=settings.tenant, app=settings.app)
    measured = await context.overviews.measured()
    return shown(
        request,
        "health",
        doc=await context.run(lambda: check.look(limit=_MOST_TASKS)),
        ready=await context.readiness.document(),
        attention=context.overviews.compose(measured, 300).attention,
        parts_shown=list(context.parts),
        uptime=context.clock.monotonic() - context.started_at,
        backend=context.backend.kind,
    )


@get("/ui/audit", **{**PAGE, "opt": {**PAGE["opt"], "scope": "admin"}})
async def show_audit_page(request: ApiRequest, cursor: Cursor = None) -> Response[str]:
    """List who changed what, newest first."""
    return shown(request, "audit", doc=await audit_page(request, 50, cursor))
