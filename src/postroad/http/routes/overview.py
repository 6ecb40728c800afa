"""`/overview`, `/live`, `/metrics`, `/map` and `/demo`: the state of everything, and how it is connected; its pages."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Response, get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Redirect

from postroad.dashboard import flow, level, map_drawing, place_of
from postroad.errors import RouteNotFound
from postroad.http.context import Demo
from postroad.http.idempotency import perform
from postroad.http.live import Viewer
from postroad.http.map import MOST_DRAWN_AGENTS, draw_map
from postroad.http.metrics import CONTENT_TYPE, exposition
from postroad.http.openapi import route
from postroad.http.overview import Measured
from postroad.http.requests import ApiRequest, StreamResponse, actor_of, still_allowed
from postroad.http.routes.ui import PAGE, changing, redirect, shown
from postroad.http.samples import LONGEST_SECONDS
from postroad.queues import QueueOverview
from postroad.settings import METRICS, beside
from postroad.tasks import HealthCheck
from postroad.views import DemoShown, Map, Overview, PartState, queue_row

_BUSIEST: Final = 8
_MOST_TASKS: Final = 100
_MOST_LISTED: Final = 100
Window = Annotated[
    int, QueryParameter(ge=10, le=LONGEST_SECONDS, description="The seconds that the charts show, 10 to 86,400.")
]
LastEventId = Annotated[
    str | None, HeaderParameter(name="Last-Event-ID", description="The id of the event that was seen last.")
]
Wanted = Annotated[str, QueryParameter(description="The name of a queue, its beginning, or an id.")]


@route("GET /overview", "read", Overview)
async def show_overview(request: ApiRequest, window: Window = 300) -> Overview:
    """Show what waits, what happened and what needs attention, as it was a second ago at most."""
    return await request.context.overviews.document(window)


@route("GET /live", "read", str, 429, says="Server-Sent Events.", media_type="text/event-stream")
async def watch_overview(
    request: ApiRequest, window: Window = 300, last_event_id: LastEventId = None
) -> StreamResponse | Response[None]:
    """Stream the overview as events of type `overview`, one within two seconds of each change."""
    if request.is_head:
        return Response(None, media_type="text/event-stream")
    live = request.context.live
    return StreamResponse(Viewer(live, window=window, last_id=last_event_id, is_allowed=still_allowed(request)))


@route("GET /map", "read", Map)
async def show_map(request: ApiRequest) -> Map:
    """Show topics, queues, streams, the outbox, handlers and agents, and how messages travel between them."""
    return await _map(request, whole=True)


async def _map(request: ApiRequest, *, whole: bool) -> Map:
    """Return the map, of all queues or of as many as can be drawn."""
    context = request.context
    found = await context.overviews.measured()
    return await context.run(lambda: draw_map(context.backend, context.settings, request.agents, found, whole=whole))


@route("GET /metrics", "read", str, says="Metrics as text.", media_type=CONTENT_TYPE)
async def show_metrics(request: ApiRequest) -> Response[bytes]:
    """Show what the engine counts and what the parts measure, for Prometheus."""
    context = request.context
    found, parts = await context.overviews.measured(), context.parts
    directory = beside(context.settings.url, METRICS)

    def write() -> bytes:
        service = context.settings.outbox_service
        return exposition(found, parts=parts, requests=context.request_metrics, service=service, directory=directory)

    return Response(await context.run(write), media_type=CONTENT_TYPE)


@get("/ui/map", **PAGE)
async def system_map(request: ApiRequest) -> Response[str]:
    """Draw what events pass through."""
    document = await _map(request, whole=False)
    drawing, rest = await request.context.run(lambda: map_drawing(document))
    measured = await request.context.overviews.measured()
    left_out = len(measured.queues) - sum(node.kind in ("queue", "dead_letter") for node in document.nodes)
    left = left_out + max(0, len(rest) - _MOST_LISTED)
    return shown(
        request,
        "map",
        drawing=drawing,
        rest=rest[:_MOST_LISTED],
        rest_left=left,
        agents_left=(measured.work.agents or 0) > MOST_DRAWN_AGENTS,
        place_of=place_of,
    )


def _demo(request: ApiRequest) -> Demo:
    """Return the demo, or raise `RouteNotFound` if none runs here."""
    if request.context.demo is None:
        raise RouteNotFound("no demo runs here", remedy="Start one with `postroad up --demo`.")
    return request.context.demo


def _demo_shown(request: ApiRequest) -> DemoShown:
    states: dict[str, PartState] = {part.name: part.state for part in request.context.parts}
    return _demo(request).show(states.get("demo", "starting"))


@route("GET /demo", "read", DemoShown, 404)
async def show_demo(request: ApiRequest) -> DemoShown:
    """Show what each scene has published and handled, and how far the failure is repaired."""
    return await request.context.run(lambda: _demo_shown(request))


@route("POST /demo/repair", "operate", DemoShown, 404, bodiless=True)
async def repair_demo(request: ApiRequest) -> Response[Any]:
    """Repair the push provider; its dead letters can be redriven then."""

    def repair() -> DemoShown:
        _demo(request).repair(actor_of(request))
        return _demo_shown(request)

    return await perform(request, repair)


repair_from_page = changing("/ui/demo/repair", repair_demo, "/ui/")


@get("/ui", **PAGE)
async def show_overview_page(request: ApiRequest, window: Window = 3_600) -> Response[str]:
    """Show whether anything is wrong, what, since when, and where to click."""
    context = request.context
    measured = await context.overviews.measured()
    doc = context.overviews.compose(measured, window)
    waiting = doc.backlog.visible + doc.backlog.in_flight + doc.backlog.delayed
    now, rates = context.clock.monotonic(), context.overviews.rates
    queues = [queue_row(each) for each in _busiest(request, measured)]
    return shown(
        request,
        "overview",
        doc=doc,
        demo=await context.run(lambda: _demo_shown(request)) if context.demo else None,
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


def _busiest(request: ApiRequest, measured: Measured) -> list[QueueOverview]:
    """Return the queues to which most was sent of late, then those that hold most."""
    names = [*request.context.overviews.rates.busiest(_BUSIEST), *(each.spec.name for each in measured.largest)]
    known = (measured.by_name.get(name) for name in dict.fromkeys(names))
    return [each for each in known if each is not None][:_BUSIEST]


@get("/ui/find", **PAGE)
async def find(request: ApiRequest, q: Wanted = "") -> Redirect:
    """Go to the queue of this name, to the queues whose names begin so, or to the story of this id."""
    wanted, backend = q.strip(), request.context.backend
    if not wanted:
        return redirect("/ui/queues")
    # The queue of this very name comes before all others whose names begin so.
    found = await request.context.run(lambda: backend.queue_names(prefix=wanted, limit=1))
    if found == [wanted]:
        return redirect("/ui/queues", wanted)
    if found:
        return redirect("/ui/queues", name=wanted)
    return redirect("/ui/events", wanted)


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
