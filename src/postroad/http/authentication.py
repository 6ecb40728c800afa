"""Who is asking, and whether the token reaches the scope that the route declares."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from litestar import Request

from postroad.agents import claimed_id, not_found
from postroad.errors import Forbidden, ReadOnly, TransportError, Unauthorized
from postroad.http.context import Context
from postroad.http.requests import ApiRequest
from postroad.http.tokens import Identity, reaches
from postroad.views import Scope

OPEN = "open"
AGENT = "agent"
"""A route that agents reach too: which part of its path must be the caller, or `ANY_AGENT`."""
ANY_AGENT = "any"


async def guard(request: Request[Any, Any, Any]) -> None:
    """Let the caller through to a route whose `opt["scope"]` its token reaches; 'open' needs no token."""
    assert isinstance(request, ApiRequest)
    needed = request.route_handler.opt["scope"]
    if needed == OPEN:
        return
    context = request.context
    identity = await _identify(context, request.raw_header(b"authorization"))
    context.rates.take(identity.name)
    if identity.agent is not None:
        _check_own(request, identity.agent)
    elif not reaches(cast(Scope, identity.scope), cast(Scope, needed)):
        raise Forbidden(f"the token has scope {identity.scope}; this needs {needed}")
    if context.settings.read_only and request.scope["method"] != "GET":
        raise ReadOnly("this server refuses every change")
    request.scope["user"] = identity


async def _identify(context: Context, authorization: str | None) -> Identity:
    if not authorization:
        raise Unauthorized("there is no token")
    secret = _secret(authorization)
    identity = context.identities.of(secret)
    if identity is None and claimed_id(secret) is not None:
        identity = await context.run(lambda: _agent_of(context, secret))
    if identity is None:
        raise _refused()
    return identity


def token_check(request: ApiRequest) -> Callable[[], None]:
    """What raises `Unauthorized`, on a thread, as soon as the request's token opens nothing any more."""
    context, secret = request.context, _secret(request.raw_header(b"authorization") or "")

    def check() -> None:
        # A storage that cannot tell revokes nothing.
        with suppress(TransportError):
            if context.identities.of(secret) is None and _agent_of(context, secret) is None:
                raise _refused()

    return check


def _agent_of(context: Context, secret: str) -> Identity | None:
    agent_id = context.agent_access.agents.authenticate(secret)
    return None if agent_id is None else Identity(f"agent:{agent_id}", "agent", agent_id)


def _secret(authorization: str) -> str:
    kind, _, secret = authorization.partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def _refused() -> Unauthorized:
    return Unauthorized("the token opens nothing: it is unknown, revoked or expired")


def _check_own(request: ApiRequest, agent_id: str) -> None:
    """Let an agent through to what is its own; another agent's is not there for it."""
    own = request.route_handler.opt.get(AGENT)
    if own is None:
        raise Forbidden("the token is an agent's; this needs an operator's")
    if own != ANY_AGENT and (asked := request.path_params[own]) != agent_id:
        raise not_found(asked)
