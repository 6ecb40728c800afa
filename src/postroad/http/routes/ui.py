"""`/ui`: what the pages of the dashboard share, its files, and logging in and out.

A page stands beside the API routes whose documents it shows: it calls their functions (`list_queues.fn`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter
from litestar.response import Redirect

from postroad.dashboard import asset, render
from postroad.errors import PostroadError, RouteNotFound, Unauthorized
from postroad.http import requests
from postroad.http.forms import misfit
from postroad.http.requests import FORM, OPEN, ApiRequest, check_origin, chrome_of
from postroad.http.sessions import COOKIE, SECONDS
from postroad.views import problem

PAGE: dict[str, Any] = {"include_in_schema": False, "opt": {"scope": "read", requests.PAGE: True}}
Id = Annotated[str, PathParameter()]
Text = Annotated[str | None, QueryParameter()]


def form(scope: str) -> dict[str, Any]:
    """Return the options of a route that a form calls."""
    return {"include_in_schema": False, "opt": {"scope": scope, FORM: True}, "status_code": 303}


def changing(path: str, action: HTTPRouteHandler, back: str) -> HTTPRouteHandler:
    """Return the route of a form without fields: it does what the API's `action` does with the parts of the path.

    Then it leads to the page `back`, whose address may name these parts.
    """

    @post(path, **form("operate"))
    async def by_form(request: ApiRequest) -> Redirect:
        parts = request.path_params
        await action.fn(request, **parts)
        return Redirect(back.format(**{name: quote(part, safe="") for name, part in parts.items()}), status_code=303)

    return by_form


def filled(given: Mapping[str, str], into: type[Any], *names: str, **others: Any) -> Any:
    """Return the form `into` with these fields of a page; one that was left empty is not given."""
    values = {name: given[name] for name in names if given.get(name)}
    try:
        return msgspec.convert(values | others, into, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(str(error)) from None


def shown(request: ApiRequest, page: str, *, error: PostroadError | None = None, **document: Any) -> Response[str]:
    """Answer a page; with an error it has the error's status, and says what to do."""
    document["problem"] = None if error is None else problem(error, request_id=request.request_id)
    text = render(page, chrome_of(request), **document)
    return Response(text, status_code=200 if error is None else error.status, media_type="text/html")


def redirect(*path: str, **query: Any) -> Redirect:
    """Lead the browser to a page: the first part of its path is given as it is, and the others are quoted."""
    address = "/".join([path[0], *(quote(part, safe="") for part in path[1:])])
    return Redirect(f"{address}?{urlencode(query)}" if query else address, status_code=303)


@get("/static/{name:str}", include_in_schema=False, opt={"scope": OPEN})
async def static(name: Id) -> Response[bytes]:
    """Return the style sheet, the script or the icon."""
    if (found := asset(name)) is None:
        raise RouteNotFound("there is nothing at this address")
    return Response(found[0], media_type=found[1])


@get("/login", include_in_schema=False, opt={"scope": OPEN})
async def login_page(request: ApiRequest) -> Response[str]:
    """Show the form; the script fills it in from the link."""
    return shown(request, "login")


@post("/login", include_in_schema=False, opt={"scope": OPEN, FORM: True}, status_code=303)
async def login(request: ApiRequest) -> Response[str] | Redirect:
    """Begin a session, or show why not."""
    context = request.context
    check_origin(request)
    address = "" if request.client is None else request.client.host
    context.failed_logins.check(address)
    token = (await request.fields()).get("token", "").strip()
    if not token or context.identities.of(token) is None:
        context.failed_logins.note(address)
        remedy = "Paste the token from the file beside the data, or ask an admin for a new one."
        return shown(request, "login", error=Unauthorized("the token is unknown, revoked or expired", remedy=remedy))
    secure = "; Secure" if request.scope["scheme"] == "https" else ""
    cookie = f"{COOKIE}={context.sessions.begin(token)}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SECONDS}{secure}"
    return Redirect("/ui/", status_code=303, headers={"Set-Cookie": cookie})


@get("/logout", **PAGE)
async def logout_page(request: ApiRequest) -> Response[str]:
    """Ask before the session ends."""
    return shown(request, "logout")


@post("/logout", **form("read"))
async def logout() -> Redirect:
    """End the session in this browser."""
    cookie = f"{COOKIE}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"
    return Redirect("/login", status_code=303, headers={"Set-Cookie": cookie})
