"""`/ui`: the pages of the dashboard. Each shows the document of an API route; forms call the same functions."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import PathParameter

from postroad import __version__
from postroad.dashboard import Chrome, asset, render
from postroad.errors import RouteNotFound, Unauthorized
from postroad.http import requests
from postroad.http.requests import FORM, OPEN, ApiRequest, check_origin, chrome_of
from postroad.http.sessions import COOKIE, SECONDS
from postroad.views import problem

HTML = "text/html"
PAGE: dict[str, Any] = {"include_in_schema": False, "opt": {"scope": "read", requests.PAGE: True}}


def form(scope: str) -> dict[str, Any]:
    """Return the options of a route that a form calls."""
    return {"include_in_schema": False, "opt": {"scope": scope, FORM: True}, "status_code": 303}


def shown(request: ApiRequest, page: str, *, status: int = 200, **document: Any) -> Response[str]:
    """Answer a page."""
    return Response(render(page, chrome_of(request), **document), status_code=status, media_type=HTML)


@get("/static/{name:str}", include_in_schema=False, opt={"scope": OPEN})
async def static(name: Annotated[str, PathParameter()]) -> Response[bytes]:
    """Return the style sheet, the script or the icon."""
    if (found := asset(name)) is None:
        raise RouteNotFound("there is nothing at this address")
    return Response(found[0], media_type=found[1])


@get("/login", include_in_schema=False, opt={"scope": OPEN})
async def login_page(request: ApiRequest) -> Response[str]:
    """Show the form; the script fills it in from the link."""
    return Response(render("login", Chrome(version=__version__), problem=None), media_type=HTML)


@post("/login", include_in_schema=False, opt={"scope": OPEN, FORM: True}, status_code=303)
async def login(request: ApiRequest) -> Response[str]:
    """Begin a session, or show why not."""
    context = request.context
    check_origin(request)
    address = "" if request.client is None else request.client.host
    context.failed_logins.check(address)
    token = (await request.fields()).get("token", "").strip()
    if not token or context.identities.of(token) is None:
        context.failed_logins.note(address)
        remedy = "Paste the token from the file beside the data, or ask an admin for a new one."
        error = Unauthorized("the token is unknown, revoked or expired", remedy=remedy)
        refused = problem(error, request_id=request.request_id)
        return Response(render("login", Chrome(version=__version__), problem=refused), status_code=401, media_type=HTML)
    secure = "; Secure" if request.scope["scheme"] == "https" else ""
    cookie = f"{COOKIE}={context.sessions.begin(token)}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SECONDS}{secure}"
    return Response("", status_code=303, headers={"Location": "/ui/", "Set-Cookie": cookie}, media_type=HTML)


@get("/logout", **PAGE)
async def logout_page(request: ApiRequest) -> Response[str]:
    """Ask before the session ends."""
    return shown(request, "logout")


@post("/logout", **form("read"))
async def logout() -> Response[str]:
    """End the session in this browser."""
    headers = {"Location": "/login", "Set-Cookie": f"{COOKIE}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"}
    return Response("", status_code=303, headers=headers, media_type=HTML)
