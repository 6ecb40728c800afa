"""`/health`, `/ready`, `/status`, `/schema`, `/errors` and `/tokens`: the service, its tokens and its errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from litestar import Response, get
from litestar.response import Redirect

from postroad import __version__
from postroad.errors import PostroadError, RouteNotFound
from postroad.http import forms
from postroad.http.idempotency import perform
from postroad.http.openapi import answers, example, route
from postroad.http.requests import OPEN, ApiRequest, Cursor, Limit, Name, page
from postroad.http.routes.ui import shown
from postroad.views import BackendShown, ErrorPage, Health, Page, Ready, Status, TokenMade, TokenRow, error_page

_HEALTH = msgspec.json.encode(Health("ok", __version__))


@route("GET /health", OPEN, Health)
async def health() -> Response[bytes]:
    """Answer that the process is alive, without using the storage."""
    return Response(_HEALTH, media_type="application/json")


@route("GET /ready", OPEN, Ready, says="Ready.", also=answers(Ready, status=503, says="Not ready for now."))
async def ready(request: ApiRequest) -> Response[Ready]:
    """Answer whether storage and runners work; 503 if not."""
    document = await request.context.readiness.document()
    is_ready = document.status == "ready"
    headers = {} if is_ready else {"Retry-After": "1"}
    return Response(document, status_code=200 if is_ready else 503, headers=headers)


@route("GET /status", "read", Status)
async def status(request: ApiRequest) -> Status:
    """Show the version, the backend and every part with its process."""
    context = request.context
    return Status(
        version=__version__,
        uptime_seconds=round(time.monotonic() - context.started_at, 3),
        backend=BackendShown(context.backend.url, context.backend.kind),
        read_only=context.settings.read_only,
        parts=list(context.parts),
    )


@get("/", opt={"scope": "read"}, status_code=303, include_in_schema=False)
async def root() -> Redirect:
    """Redirect to the dashboard."""
    return Redirect("/ui/", status_code=303)


@route("GET /schema/openapi.json", "read", dict[str, Any], says="OpenAPI 3.1.")
async def openapi(request: ApiRequest) -> Response[bytes]:
    """Return the description as OpenAPI 3.1."""
    return Response(request.app.state["openapi"].encoded, media_type="application/json")


@route("GET /schema", "read", str, says="The page.", media_type="text/html")
async def schema(request: ApiRequest) -> Response[str]:
    """Show the description as a page."""
    return shown(request, "schema", doc=request.app.state["openapi"].document)


@route("GET /errors/{slug:str}", OPEN, ErrorPage, 404)
async def explain_error(slug: Name) -> ErrorPage:
    """Explain an error, and what to do about it."""
    for kind in _kinds(PostroadError):
        if kind.slug == slug:
            return error_page(kind)
    raise RouteNotFound("no error has this name")


def _kinds(kind: type[PostroadError]) -> Iterator[type[PostroadError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


TokenBody = Annotated[forms.NewToken, example({"name": "worker-1", "scope": "publish", "expires_in": 86_400})]


@route("POST /tokens", "admin", TokenMade, 409, status=201)
async def create_token(request: ApiRequest, data: TokenBody) -> Response[Any]:
    """Create a token. A repeat with the same Idempotency-Key shows a new secret and revokes the previous one."""
    tokens = request.context.tokens
    request.note("token.create", data.name, scope=data.scope)

    def make() -> TokenMade:
        token, secret = tokens.create(data.name, data.scope, expires_in=data.expires_in)
        return token.made(secret)

    def renew(document: dict[str, Any]) -> TokenMade:
        token, secret = tokens.renew(document["name"])
        return token.made(secret)

    return await perform(request, make, revive=renew)


@route("GET /tokens", "admin", Page[TokenRow])
async def list_tokens(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Page[TokenRow]:
    """List all tokens by name, without their secrets."""

    def find(after: str | None) -> tuple[list[TokenRow], str | None]:
        tokens = [token for token in request.context.tokens.tokens() if token.name > (after or "")]
        return [token.row for token in tokens[:limit]], tokens[limit - 1].name if len(tokens) > limit else None

    return await page(request, "tokens", cursor, find)


@route("DELETE /tokens/{name:str}", "admin", None, 404, status=204)
async def revoke_token(request: ApiRequest, name: Name) -> None:
    """Revoke a token; it is invalid after a second at the latest."""
    await request.context.run(lambda: request.context.tokens.revoke(name))
