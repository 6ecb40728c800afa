"""Requests: who calls and what the token allows, parameters, bodies as strict JSON, pages, and errors."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import parse_qsl
from uuid import UUID, uuid5

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.params import PathParameter, QueryParameter
from litestar.types import ASGIApp, HTTPReceiveMessage, Receive, Scope as AsgiScope, Send
from litestar.types.empty import Empty

from postroad import __version__, errors
from postroad.agents import Agents, claimed_id, not_found
from postroad.dashboard import Chrome, render
from postroad.http.context import Context
from postroad.http.forms import Form, decode
from postroad.http.idempotency import SEED
from postroad.http.live import Viewer
from postroad.http.server_sent_events import AgentStream
from postroad.http.sessions import COOKIE, Session
from postroad.http.tokens import Identity, digest, reaches
from postroad.queues import check_name
from postroad.telemetry import get_logger
from postroad.views import PROBLEM_MEDIA_TYPE, Page, Scope, problem

OPEN = "open"
AGENT = "agent"
"""The option of a route that agents may use: which part of its path must be the caller, or `ANY_AGENT`."""
ANY_AGENT = "any"
BODILESS = "bodiless"
"""The option of a route whose body may be left out."""
FORM = "form"
"""The option of a route that a page's form calls; `ApiRequest.fields` are what was filled in."""
PAGE = "page"
"""The option of a route that answers a page of the dashboard, with the counts of the overview in its navigation."""
NOTE = "note"
"""The key of what is to be recorded in the audit file, in the state of the request."""
T = TypeVar("T")
_log = get_logger("http")


class ApiRequest(Request[Identity | None, Any, Any]):
    """A request whose `json()` returns the form that its route declares."""

    @property
    def context(self) -> Context:
        """What the routes work with."""
        return cast(Context, self.scope["state"]["context"])

    @property
    def agents(self) -> Agents:
        """The agents of the backend."""
        return self.context.agent_access.agents

    @property
    def request_id(self) -> str:
        """The id of this request in answers and logs."""
        return cast(str, self.scope["state"]["request_id"])

    def raw_header(self, name: bytes) -> str | None:
        """Return one header, from the dictionary that the middleware made; the framework would parse all of them."""
        value: bytes | None = self.scope["state"]["headers"].get(name)
        return None if value is None else value.decode("latin-1")

    def repeatable_id(self, index: int = 0) -> str | None:
        """Return an id that a repeat with the same Idempotency-Key gets again after a crash; None if any id will do."""
        seed: UUID | None = self.scope["state"].get(SEED)
        return None if seed is None else str(uuid5(seed, str(index)))

    @property
    def dashboard_session(self) -> Session | None:
        """The session of the dashboard that the cookie refers to."""
        return self.context.sessions.read(self.cookies.get(COOKIE))

    async def fields(self) -> dict[str, str]:
        """Return the fields of a form; the last value of each name stands."""
        kind, _ = self.content_type
        if kind != "application/x-www-form-urlencoded":
            raise errors.NotJSON("the body is not a form", remedy="Send application/x-www-form-urlencoded.")
        return dict(parse_qsl((await self.body()).decode(errors="replace"), keep_blank_values=True))

    def note(self, action: str, target: str, **detail: Any) -> None:
        """Have this recorded in the audit file once the request is answered, unless it fails."""
        self.scope["state"][NOTE] = (action, target, detail)

    @property
    def is_form(self) -> bool:
        """Whether a page's form sent it."""
        return cast(bool, self.route_handler.opt.get(FORM, False))

    @property
    def is_head(self) -> bool:
        """Whether only the headers are wanted."""
        return cast(bool, self.scope["state"]["head"])

    async def no_body(self) -> None:
        """Refuse a body that has fields."""
        decode(await self.body() or b"{}", Form)

    async def body(self) -> bytes:
        """Return the whole body; refuse one that is too long, too slow, encoded or empty."""
        if self._body is Empty:
            self._check_headers()
            may_be_empty = self.route_handler.opt.get(BODILESS, False)
            try:
                async with asyncio.timeout(self.context.body_seconds):
                    self._body = await self._read()
            except TimeoutError:
                raise errors.BodyTooSlow(f"the body took more than {self.context.body_seconds:g} seconds") from None
            if not self._body and not may_be_empty:
                raise errors.InvalidInput("the body is empty, at position 0", remedy="Send a JSON object, at least {}.")
        return self._body

    async def json(self) -> Any:
        """Return the body in the form that the route declares; raise `InvalidInput` with the field."""
        if self._json is Empty:
            field = self.route_handler.parsed_data_field
            assert field is not None
            self._json = decode(await self.body() or b"{}", field.annotation)
        return self._json

    def _check_headers(self) -> None:
        if (self.raw_header(b"content-encoding") or "identity").lower() != "identity":
            raise errors.NotJSON("the body has a Content-Encoding")
        options, limit = self.route_handler.opt, self.context.settings.max_body_bytes
        # The server accepts digits only.
        length = int(self.raw_header(b"content-length") or 0)
        if options.get(BODILESS, False) and not length and self.raw_header(b"transfer-encoding") is None:
            return
        if not self.is_form and not self._is_json():
            raise errors.NotJSON("the body's Content-Type is not application/json in UTF-8")
        if length > limit:
            raise _too_large(limit)

    def _is_json(self) -> bool:
        if self.raw_header(b"content-type") == "application/json":
            return True  # The framework would parse all headers.
        kind, options = self.content_type
        return kind == "application/json" and options.get("charset", "utf-8").lower() in ("utf-8", "utf8")

    async def _read(self) -> bytes:
        limit = self.context.settings.max_body_bytes
        body = bytearray()
        while True:
            event = cast(HTTPReceiveMessage, await self.receive())
            if event["type"] == "http.disconnect":
                raise errors.BodyTooSlow("the connection was closed before the body was complete")
            body += event["body"]
            if len(body) > limit:
                raise _too_large(limit)
            if not event.get("more_body", False):
                return bytes(body)


class StreamResponse(Response[Any]):
    """Leaves the stream to the middleware: here the framework would keep all that it holds for a request."""

    STREAM = "stream"
    """The key of the stream in the state of the request."""

    def __init__(self, stream: AgentStream | Viewer) -> None:
        super().__init__(None)
        self._stream = stream

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIApp:  # type: ignore[override]  # it is only ever called
        """Return what the framework calls; it sends nothing."""

        async def leave_to_middleware(scope: AsgiScope, receive: Receive, send: Send) -> None:
            scope["state"][StreamResponse.STREAM] = self._stream

        return leave_to_middleware


async def guard(request: Request[Any, Any, Any]) -> None:
    """Let the caller use a route whose `opt["scope"]` its token reaches; 'open' needs no token."""
    assert isinstance(request, ApiRequest)
    needed = request.route_handler.opt["scope"]
    if needed == OPEN:
        return
    context = request.context
    authorization = request.raw_header(b"authorization")
    if authorization is None and (session := request.dashboard_session) is not None:
        identity = await _of_session(request, session)
    else:
        identity = await _identify(context, authorization)
    request.scope["user"] = identity
    context.rates.take(identity.name)
    if identity.agent is not None:
        _check_own(request, identity.agent)
    elif not reaches(cast(Scope, identity.scope), cast(Scope, needed)):
        says = f"the token has scope {identity.scope}; this needs {needed}"
        if identity.scope == "read" and request.scope["method"] != "GET":
            raise errors.ReadOnly(says, remedy=errors.Forbidden.remedy)
        raise errors.Forbidden(says)
    # Logging out needs no more than reading, and changes nothing here.
    if context.settings.read_only and request.scope["method"] != "GET" and needed != "read":
        raise errors.ReadOnly("this server refuses every change")
    if request.route_handler.opt.get(PAGE, False):
        # A page is shown without counts while the storage does not answer.
        with suppress(errors.PostroadError):
            await context.overviews.measured()


async def _of_session(request: ApiRequest, session: Session) -> Identity:
    """Return who has logged in; a change needs the proof that one of our pages asked for it."""
    identity = request.context.identities.of_digest(session.sha256)
    if identity is None:
        raise _invalid_token()
    request.scope["user"] = identity
    if request.scope["method"] not in ("GET", "HEAD"):
        check_origin(request)
        given = request.raw_header(b"x-csrf-token")
        if given is None and request.is_form:
            given = (await request.fields()).get("csrf_token")
        if given is None or not hmac.compare_digest(given.encode(), session.csrf.encode()):
            raise errors.ForeignForm("the form has no csrf_token of this session", field="csrf_token")
    return identity


def check_origin(request: ApiRequest) -> None:
    """Refuse what a page of another site sends."""
    origin, host = request.raw_header(b"origin"), request.raw_header(b"host")
    if origin is not None and origin != f"{request.scope['scheme']}://{host}":
        raise errors.ForeignForm(f"the origin {origin[:100]!r} is not this server")


async def _identify(context: Context, authorization: str | None) -> Identity:
    if not authorization:
        raise errors.Unauthorized("there is no token")
    secret = _secret(authorization)
    identity = context.identities.of(secret)
    if identity is None and claimed_id(secret) is not None:
        identity = await context.run(lambda: _agent_of(context, secret))
    if identity is None:
        raise _invalid_token()
    return identity


def token_check(request: ApiRequest) -> Callable[[], None]:
    """Return a function that raises `Unauthorized` once the request's token is no longer valid; call it on a thread."""
    context, secret = request.context, _secret(request.raw_header(b"authorization") or "")

    def check() -> None:
        # A token stays valid while the storage cannot be asked, or the file of tokens cannot be read.
        with suppress(errors.TransportError, errors.ConfigurationError):
            if context.identities.of(secret) is None and _agent_of(context, secret) is None:
                raise _invalid_token()

    return check


def still_allowed(request: ApiRequest) -> Callable[[], bool]:
    """Return a function that says whether the token or session of the request is still valid, without the storage."""
    context, authorization = request.context, request.raw_header(b"authorization")
    if authorization is not None:
        hashed = digest(_secret(authorization))
        return lambda: context.identities.of_digest(hashed) is not None
    cookie = request.cookies.get(COOKIE)

    def check() -> bool:
        session = context.sessions.read(cookie)
        return session is not None and context.identities.of_digest(session.sha256) is not None

    return check


def _agent_of(context: Context, secret: str) -> Identity | None:
    agent_id = context.agent_access.agents.authenticate(secret)
    return None if agent_id is None else Identity(f"agent:{agent_id}", "agent", agent_id)


def _secret(authorization: str) -> str:
    kind, _, secret = authorization.partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def _invalid_token() -> errors.Unauthorized:
    return errors.Unauthorized("the token is unknown, revoked or expired")


def _check_own(request: ApiRequest, agent_id: str) -> None:
    """Let an agent use its own routes; another agent does not exist for it."""
    own = request.route_handler.opt.get(AGENT)
    if own is None:
        raise errors.Forbidden("the token is an agent's; this needs an operator's")
    if own != ANY_AGENT and (asked := request.path_params[own]) != agent_id:
        raise not_found(asked)


async def page(
    request: ApiRequest, of: str, cursor: str | None, find: Callable[[str | None], tuple[Iterable[T], str | None]]
) -> Page[T]:
    """Return one page of the list `of`, whose name includes its filters: a cursor is valid for this list only.

    `find` runs on a thread and returns the rows behind a position, and the position of the next page.
    """
    cursors = request.context.cursors
    after = None if cursor is None else cursors.open(of, cursor)

    def look() -> Page[T]:
        rows, following = find(after)
        return Page(list(rows), None if following is None else cursors.seal(of, following))

    return await request.context.run(look)


def _too_large(limit: int) -> errors.BodyTooLarge:
    return errors.BodyTooLarge(f"the body is longer than {limit} bytes")


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return any exception as a problem; an unexpected one is logged and shows only the request's id."""
    request_id = request.scope["state"].get("request_id")
    known = _known(error)
    if known is None or known.status == 500:
        _log.error("http_request", request_id=request_id, status=500, exc_info=error)
        known = errors.InternalError("The cause is in the log.")
    headers = headers_of(known) | _allow(error)
    if request.scope["path"].lstrip("/").partition("/")[0] in ("", "ui", "login", "logout"):
        if known.status == 401:
            return Response(b"", status_code=303, headers={"Location": "/login"})
        chrome = chrome_of(request) if isinstance(request, ApiRequest) else Chrome(version=__version__)
        text = render("error", chrome, problem=problem(known, request_id=request_id))
        return Response(text.encode(), status_code=known.status, media_type="text/html", headers=headers)
    return Response(
        encoded(known, request_id), status_code=known.status, media_type=PROBLEM_MEDIA_TYPE, headers=headers
    )


def chrome_of(request: ApiRequest) -> Chrome:
    """Return what every page shows around its content."""
    identity, context = cast("Identity | None", request.scope.get("user")), request.context
    if identity is None or identity.agent is not None:
        return Chrome(version=__version__, now=context.clock.now())
    session = request.dashboard_session
    return Chrome(
        version=__version__,
        user=identity.name,
        scope=identity.scope,
        csrf="" if session is None else session.csrf,
        read_only=context.settings.read_only,
        counts=context.overviews.counts,
        now=context.clock.now(),
    )


def actor_of(request: ApiRequest) -> str:
    """Return the name of the token, for the audit."""
    assert request.user is not None
    return request.user.name


def encoded(error: errors.PostroadError, request_id: str | None) -> bytes:
    """Return the body of a problem."""
    return msgspec.json.encode(problem(error, request_id=request_id))


def headers_of(error: errors.PostroadError) -> dict[str, str]:
    """Return the headers that belong to the status of an error."""
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status in (429, 503):
        return {"Retry-After": str(max(1, math.ceil(getattr(error, "retry_after", None) or 1)))}
    return {}


def _known(error: Exception) -> errors.PostroadError | None:
    if isinstance(error, errors.PostroadError):
        return error
    if isinstance(error, ValidationException):
        return _invalid(error)
    if isinstance(error, NotFoundException):
        return errors.RouteNotFound("there is nothing at this address")
    if isinstance(error, MethodNotAllowedException):
        return errors.MethodNotAllowed("this address does not accept the method")
    if isinstance(error, HTTPException) and 400 <= error.status_code < 500:
        return errors.InvalidInput(error.detail)
    return None


def _invalid(error: ValidationException) -> errors.InvalidInput:
    """Return the first of the fields that the framework refused."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    field = first.get("key")
    message = str(first.get("message", error.detail))
    return errors.InvalidInput(f"{field or 'request'}: {message[:1].lower()}{message[1:]}", field=field)


def _allow(error: Exception) -> dict[str, str]:
    if not isinstance(error, MethodNotAllowedException):
        return {}
    named = {name.strip() for name in (error.headers or {}).get("allow", "").split(",")}
    methods = (named - {"OPTIONS", ""}) | ({"HEAD"} if "GET" in named else set())
    return {"Allow": ", ".join(sorted(methods))}


Limit = Annotated[int, QueryParameter(ge=1, le=100, description="How many to return, 1 to 100.")]
Cursor = Annotated[str | None, QueryParameter(description="`next_cursor` of the previous page.")]
QueueName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]{1,80}(\.fifo)?$", description="The queue's name.")]
AgentId = Annotated[str, PathParameter(description="The agent's id.")]
Discard = Annotated[bool, QueryParameter(description="Whether to delete the waiting messages too.")]
Visibility = Annotated[
    float | None,
    QueryParameter(ge=1, le=43_200, description="Seconds of a lease; by default as the server is set up, 30."),
]
Name = Annotated[str, PathParameter(description="Its name.")]
Confirm = Annotated[str, QueryParameter(description="The queue's name again.")]
Payload = Annotated[int, QueryParameter(ge=0, le=1, description="1 shows the bodies too.")]


def checked(queue: str) -> str:
    """Return the queue's name; refuse one that no queue can have."""
    return check_name(queue, field="queue")
