"""The guard of every route: the token must reach the scope that the route declares."""

from __future__ import annotations

from typing import Any, cast

from litestar import Request

from postroad.errors import Forbidden, ReadOnly, Unauthorized
from postroad.http.context import Context
from postroad.http.identities import Identity
from postroad.http.requests import ApiRequest
from postroad.http.tokens import Scope, reaches

OPEN = "open"


async def guard(request: Request[Any, Any, Any]) -> None:
    """Let the caller through to a route whose `opt["scope"]` its token reaches; 'open' needs no token."""
    assert isinstance(request, ApiRequest)
    needed = request.route_handler.opt["scope"]
    if needed == OPEN:
        return
    context = request.context
    identity = _identify(context, request.raw_header(b"authorization"))
    context.rates.take(identity.name)
    if not reaches(identity.scope, cast(Scope, needed)):
        raise Forbidden(f"the token has scope {identity.scope}; this needs {needed}")
    if context.settings.read_only and request.scope["method"] != "GET":
        raise ReadOnly("this server refuses every change")
    request.scope["user"] = identity


def _identify(context: Context, authorization: str | None) -> Identity:
    if not authorization:
        raise Unauthorized("there is no token")
    kind, _, secret = authorization.partition(" ")
    identity = context.identities.of(secret.strip()) if kind.lower() == "bearer" else None
    if identity is None:
        raise Unauthorized("the token opens nothing: it is unknown, revoked or expired")
    return identity
