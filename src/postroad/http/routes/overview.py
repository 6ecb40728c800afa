"""`/overview`, `/live`, `/metrics` and `/map`: the state of everything, as it changes, and how it is connected."""

from __future__ import annotations

from typing import Annotated

from litestar import Response
from litestar.params import HeaderParameter, QueryParameter

from postroad.http.live import Viewer
from postroad.http.map import MapMaker
from postroad.http.metrics import CONTENT_TYPE, exposition
from postroad.http.openapi import route
from postroad.http.requests import ApiRequest, StreamResponse, still_allowed
from postroad.http.samples import LONGEST_SECONDS
from postroad.settings import METRICS, beside
from postroad.views import Map, Overview

Window = Annotated[
    int, QueryParameter(ge=10, le=LONGEST_SECONDS, description="The seconds that the charts show, 10 to 86,400.")
]


@route("GET /overview", "read", Overview)
async def show_overview(request: ApiRequest, window: Window = 300) -> Response[Overview]:
    """Show what waits, what happened and what needs attention, as it was a second ago at most."""
    return Response(await request.context.overviews.document(window))


LastEventId = Annotated[
    str | None, HeaderParameter(name="Last-Event-ID", description="The id of the event that was seen last.")
]


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
async def show_map(request: ApiRequest) -> Response[Map]:
    """Show topics, queues, streams, the outbox, handlers and agents, and how messages travel between them."""
    return Response(await map_document(request))


async def map_document(request: ApiRequest, *, whole: bool = True) -> Map:
    """Return the map, of all queues or of as many as can be drawn."""
    context = request.context
    found = await context.overviews.measured()
    maker = MapMaker(context.backend, context.settings, request.agents)
    return await context.run(lambda: maker.draw(found, whole=whole))


@route("GET /metrics", "read", str, says="Metrics as text.", media_type=CONTENT_TYPE)
async def show_metrics(request: ApiRequest) -> Response[bytes]:
    """Show what the engine counts and what the parts measure, for Prometheus."""
    context = request.context
    found, parts = await context.overviews.measured(), tuple(context.parts)
    directory = beside(context.settings.url, METRICS)

    def write() -> bytes:
        service = context.settings.outbox_service
        return exposition(found, parts=parts, requests=context.request_metrics, service=service, directory=directory)

    return Response(await context.run(write), media_type=CONTENT_TYPE)
