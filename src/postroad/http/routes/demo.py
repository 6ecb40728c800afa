"""`/demo`: the scenes of a running demo, and the repair of its failure."""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from litestar.response import Redirect

from postroad.errors import RouteNotFound
from postroad.http.context import Demo
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import route
from postroad.http.requests import ApiRequest
from postroad.http.routes.ui import form
from postroad.views import DemoShown, PartState


def demo_of(request: ApiRequest) -> Demo:
    """Return the demo, or raise `RouteNotFound` if none runs here."""
    if request.context.demo is None:
        raise RouteNotFound("no demo runs here", remedy="Start one with `postroad up --demo`.")
    return request.context.demo


def demo_shown(request: ApiRequest) -> DemoShown:
    """Return the demo as it is now."""
    states: dict[str, PartState] = {part.name: part.state for part in request.context.parts}
    return demo_of(request).show(states.get("demo", "starting"))


def repair(request: ApiRequest) -> DemoShown:
    """Repair what fails, and return the demo."""
    demo_of(request).repair(None if request.user is None else request.user.name)
    return demo_shown(request)


@route("GET /demo", "read", DemoShown, 404)
async def show_demo(request: ApiRequest) -> Response[DemoShown]:
    """Show what each scene has published and handled, and how far the failure is repaired."""
    demo_of(request)
    return Response(await request.context.run(lambda: demo_shown(request)))


@route("POST /demo/repair", "operate", DemoShown, 404, bodiless=True)
async def repair_demo(request: ApiRequest) -> Response[Any]:
    """Repair the push provider; its dead letters can be redriven then."""
    await request.no_body()
    demo_of(request)
    return await perform(request, lambda: Answer(200, repair(request)))


@post("/ui/demo/repair", **form("operate"))
async def repair_from_page(request: ApiRequest) -> Redirect:
    """Repair the push provider, and show the overview again."""
    await request.context.run(lambda: repair(request))
    return Redirect("/ui/", status_code=303)
