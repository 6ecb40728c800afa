"""`/health`, `/ready`, `/status`, `/schema`, `/errors`, `/tokens`, `/why`: the service itself, and who may do what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter
from litestar.response import Redirect

from postroad import __version__
from postroad.errors import PostroadError, RouteNotFound
from postroad.http import forms
from postroad.http.authentication import OPEN
from postroad.http.changes import perform
from postroad.http.idempotency import Answer
from postroad.http.openapi import STYLE, answers, render
from postroad.http.pages import page
from postroad.http.requests import ApiRequest, Cursor, Limit, Name
from postroad.journal import Story
from postroad.operations import why
from postroad.views import BackendShown, ErrorPage, Health, Ready, Status, TokenMade, TokenPage, error_page

_HEALTH = msgspec.json.encode(Health("ok", __version__))


@get("/health", opt={"scope": OPEN}, responses=answers(Health, says="The process lives."))
async def health() -> Response[bytes]:
    """Whether the process lives; touches no storage."""
    return Response(_HEALTH, media_type="application/json")


@get(
    "/ready",
    opt={"scope": OPEN},
    responses=answers(Ready, says="It can do its work.") | answers(Ready, status=503, says="It cannot, for now."),
)
async def ready(request: ApiRequest) -> Response[Ready]:
    """Whether storage and runners can do their work; 503 when not."""
    document = await request.context.readiness.document()
    is_ready = document.status == "ready"
    headers = {} if is_ready else {"Retry-After": "1"}
    return Response(document, status_code=200 if is_ready else 503, headers=headers)


@get("/status", opt={"scope": "read"}, responses=answers(Status, says="What runs."))
async def status(request: ApiRequest) -> Response[Status]:
    """The version, the backend and every part with its process."""
    context = request.context
    return Response(
        Status(
            version=__version__,
            uptime_seconds=round(time.monotonic() - context.started_at, 3),
            backend=BackendShown(context.backend.url, context.backend.kind),
            read_only=context.settings.read_only,
            parts=list(context.parts),
        )
    )


@get("/", opt={"scope": "read"}, responses=answers(None, status=303, says="Go to /schema."), status_code=303)
async def root() -> Redirect:
    """Where to start."""
    return Redirect("/schema", status_code=303)


@get("/schema/openapi.json", opt={"scope": "read"}, responses=answers(dict[str, Any], says="OpenAPI 3.1."))
async def openapi(request: ApiRequest) -> Response[bytes]:
    """The description as OpenAPI 3.1."""
    return Response(request.app.state["openapi"].encoded, media_type="application/json")


@get("/schema", opt={"scope": "read"}, responses=answers(str, says="The page.", media_type="text/html"))
async def schema(request: ApiRequest) -> Response[str]:
    """The description as a page."""
    return Response(render(request.app.state["openapi"].document), media_type="text/html; charset=utf-8")


@get("/schema/style.css", opt={"scope": OPEN}, include_in_schema=False)
async def style() -> Response[str]:
    """The looks of the page."""
    return Response(STYLE, media_type="text/css; charset=utf-8")


@get("/errors/{slug:str}", opt={"scope": OPEN}, responses=answers(ErrorPage, 404, says="What the error means."))
async def explain_error(slug: Name) -> Response[ErrorPage]:
    """One kind of error: what it says and what to do about it."""
    for kind in _kinds(PostroadError):
        if kind.slug == slug:
            return Response(error_page(kind))
    raise RouteNotFound("no error has this name")


def _kinds(kind: type[PostroadError]) -> Iterator[type[PostroadError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


TokenBody = Annotated[
    forms.NewToken, Body(examples=[Example(value={"name": "worker-1", "scope": "publish", "expires_in": 86_400})])
]


@post(
    "/tokens",
    opt={"scope": "admin"},
    status_code=201,
    responses=answers(TokenMade, 400, 409, status=201, says="The token with its secret, which is shown this once."),
)
async def create_token(request: ApiRequest, data: TokenBody) -> Response[Any]:
    """Make a token. A repeat under the same Idempotency-Key shows a fresh secret, and the former one is void."""
    tokens = request.context.tokens

    def make() -> Answer:
        token, secret = tokens.create(data.name, data.scope, expires_in=data.expires_in)
        return Answer(201, token.made(secret))

    def renew(document: dict[str, Any]) -> TokenMade:
        token, secret = tokens.renew(document["name"])
        return token.made(secret)

    return await perform(request, make, revive=renew)


@get("/tokens", opt={"scope": "admin"}, responses=answers(TokenPage, 400, says="Tokens by name."))
async def list_tokens(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[TokenPage]:
    """All tokens by name, without their secrets."""
    after = "" if cursor is None else request.context.cursors.open("tokens", cursor)

    def look() -> TokenPage:
        tokens = [token for token in request.context.tokens.tokens() if token.name > after]
        return page(
            request, TokenPage, "tokens", tokens, limit, position=lambda token: token.name, row=lambda token: token.row
        )

    return Response(await request.context.run(look))


@delete("/tokens/{name:str}", opt={"scope": "admin"}, responses=answers(None, 404, status=204, says="It is revoked."))
async def revoke_token(request: ApiRequest, name: Name) -> None:
    """Revoke a token; it opens nothing a second later at the latest."""
    await request.context.run(lambda: request.context.tokens.revoke(name))


Named = Annotated[str, PathParameter(description="The id of a task or job.")]


@get("/why/{name:str}", opt={"scope": "read"}, responses=answers(Story, 404, says="What happened, and what is next."))
async def tell_why(request: ApiRequest, name: Named) -> Response[Story]:
    """What happened to a task or job, how it stands, and what would move it on."""
    context = request.context
    settings = context.settings
    look = partial(why, context.backend, name, tenant=settings.tenant, app=settings.app)
    return Response(await context.run(look))
