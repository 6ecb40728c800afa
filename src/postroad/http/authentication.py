"""Who is asking, and whether the token reaches the scope that the route declares."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from litestar import Request

from postroad.agents.rules import not_found
from postroad.agents.tokens import claimed_id
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import Forbidden, ReadOnly, TransportError, Unauthorized
from postroad.http.context import Context
from postroad.http.requests import ApiRequest
from postroad.http.tokens import ADMIN, Token, TokenFile, digest, reaches
from postroad.views import Scope

_LOOK_AGAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller whose token was recognised."""

    name: str
    scope: Scope | Literal["agent"]
    agent: str | None = None
    """The agent whose token it is; it reaches its own routes only."""


class Identities:
    """The tokens in force. A new one counts at once, a revoked one for a quarter of a second at most."""

    def __init__(self, file: TokenFile, *, admin: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = file
        self._admin = digest(admin)
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}
        self.version = 0
        """Grows whenever the tokens of the file have changed."""

    def of(self, secret: str) -> Identity | None:
        """The identity that the secret opens; None for one that is unknown, revoked or expired."""
        hashed = digest(secret)
        if hmac.compare_digest(hashed, self._admin):
            return Identity(ADMIN, "admin")
        if hashed not in self._tokens or self._clock.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
            self.look()
        token = self._tokens.get(hashed)
        if token is None or not hmac.compare_digest(token.sha256, hashed):
            return None
        if token.expires_at is not None and token.expires_at <= self._clock.now():
            return None
        return Identity(token.name, token.scope)

    def look(self) -> None:
        """See whether the file has changed."""
        self._looked_at = self._clock.monotonic()
        if (seen := self._signature()) != self._seen:
            self._tokens = {token.sha256: token for token in self._file.tokens()}
            self._seen = seen
            self.version += 1

    def _signature(self) -> tuple[int, int, int] | None:
        """What changes whenever the file is replaced."""
        try:
            status = self._file.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


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
