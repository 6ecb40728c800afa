"""The guard of every route: the token must reach the scope that the route declares."""

from __future__ import annotations

from typing import Any, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from postroad.errors import Forbidden, ReadOnly, Unauthorized
from postroad.http.context import Context
from postroad.http.identities import Identity
from postroad.http.tokens import Scope, reaches

OPEN = "open"
_SAFE = frozenset({"GET", "HEAD"})


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let the caller through to a route whose `opt["scope"]` its token reaches; 'open' needs no token."""
    needed = handler.opt["scope"]
    if needed == OPEN:
        return
    context = cast(Context, connection.app.state["context"])
    identity = _identify(context, connection.headers.get("authorization"))
    context.rates.take(identity.name)
    if not reaches(identity.scope, cast(Scope, needed)):
        raise Forbidden(f"the token has scope {identity.scope}; this needs {needed}")
    if context.settings.read_only and connection.scope.get("method") not in _SAFE:
        raise ReadOnly("this server refuses every change")
    connection.scope["user"] = identity


def _identify(context: Context, authorization: str | None) -> Identity:
    if not authorization:
        raise Unauthorized("there is no token")
    kind, _, secret = authorization.partition(" ")
    identity = context.identities.of(secret.strip()) if kind.lower() == "bearer" else None
    if identity is None:
        raise Unauthorized("the token opens nothing: it is unknown, revoked or expired")
    return identity
