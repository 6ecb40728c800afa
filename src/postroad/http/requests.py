"""The request: who asks, its parameters, a body that is read once as strict JSON, and errors in one form."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated, Any, Protocol, cast

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.params import PathParameter, QueryParameter
from litestar.types import ASGIApp, HTTPReceiveMessage, Receive, Scope, Send
from litestar.types.empty import Empty

from postroad.errors import (
    BodyTooLarge,
    BodyTooSlow,
    InternalError,
    InvalidInput,
    MethodNotAllowed,
    NotJSON,
    PostroadError,
    RouteNotFound,
)
from postroad.http.context import Context
from postroad.http.forms import Form, decode
from postroad.http.tokens import Identity
from postroad.queues import check_name
from postroad.telemetry import get_logger
from postroad.views import problem

BODILESS = "bodiless"
"""The option of a route whose body may be left out."""


class ApiRequest(Request[Identity | None, Any, Any]):
    """A request whose `json()` is the form that its route declares."""

    @property
    def context(self) -> Context:
        """What the routes work with."""
        return cast(Context, self.scope["state"]["context"])

    @property
    def request_id(self) -> str:
        """The name of this request in answers and logs."""
        return cast(str, self.scope["state"]["request_id"])

    def raw_header(self, name: bytes) -> str | None:
        """One header. The door has them as a dictionary already; the framework would read them all again."""
        value: bytes | None = self.scope["state"]["headers"].get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def is_chunked(self) -> bool:
        """Whether a body of unknown length follows."""
        return self.raw_header(b"transfer-encoding") is not None

    @property
    def is_head(self) -> bool:
        """Whether only the headers are wanted."""
        return cast(bool, self.scope["state"]["head"])

    async def no_body(self) -> None:
        """Refuse a body that says anything."""
        decode(await self.body() or b"{}", Form)

    async def body(self) -> bytes:
        """The whole body; too long, too slow, encoded or empty it is refused."""
        if self._body is Empty:
            self._check_headers()
            may_be_empty = self.route_handler.opt.get(BODILESS, False)
            try:
                async with asyncio.timeout(self.context.body_seconds):
                    self._body = await self._read()
            except TimeoutError:
                raise BodyTooSlow(f"the body took more than {self.context.body_seconds:g} seconds") from None
            if not self._body and not may_be_empty:
                raise InvalidInput("the body is empty, at position 0", remedy="Send a JSON object, at least {}.")
        return self._body

    async def json(self) -> Any:
        """The body in the form that the route declares, or `InvalidInput` naming the field."""
        if self._json is Empty:
            field = self.route_handler.parsed_data_field
            assert field is not None
            self._json = decode(await self.body() or b"{}", field.annotation)
        return self._json

    def _check_headers(self) -> None:
        if (self.raw_header(b"content-encoding") or "identity").lower() != "identity":
            raise NotJSON("the body has a Content-Encoding")
        if self.route_handler.opt.get(BODILESS, False) and not self.content_length and not self.is_chunked:
            return
        kind, options = self.content_type
        if kind != "application/json" or options.get("charset", "utf-8").lower() not in ("utf-8", "utf8"):
            raise NotJSON("the body's Content-Type is not application/json in UTF-8")
        limit = self.context.settings.max_body_bytes
        if (self.content_length or 0) > limit:
            raise _too_large(limit)

    async def _read(self) -> bytes:
        limit = self.context.settings.max_body_bytes
        body = bytearray()
        while True:
            event = cast(HTTPReceiveMessage, await self.receive())
            if event["type"] == "http.disconnect":
                raise BodyTooSlow("the caller went away before the body was complete")
            body += event["body"]
            if len(body) > limit:
                raise _too_large(limit)
            if not event.get("more_body", False):
                return bytes(body)


class Running(Protocol):
    """An answer that goes on for as long as its caller reads."""

    async def run(self, receive: Receive, start: Send, send: Send) -> None: ...


class Endless(Response[Any]):
    """Leaves the answer to the door: an endless one would keep all that the framework holds for a request."""

    RUNNING = "running"
    """Where the door finds it in the state of the request."""

    def __init__(self, running: Running) -> None:
        super().__init__(None)
        self._running = running

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIApp:  # type: ignore[override]  # it is only ever called
        """What the framework calls; nothing is sent here."""
        running = self._running

        async def leave_to_door(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"][Endless.RUNNING] = running

        return leave_to_door


async def gone(request: ApiRequest) -> None:
    """Return when the caller has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes")


MEDIA_TYPE = "application/problem+json"
_log = get_logger("http")


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Any exception as a problem; one that nobody foresaw is logged and says nothing but the request's id."""
    request_id = request.scope["state"].get("request_id")
    known = _known(error)
    if known is None or known.status == 500:
        _log.error("http_request", request_id=request_id, status=500, exc_info=error)
        known = InternalError("The cause is in the log.")
    headers = headers_of(known) | _allow(error)
    return Response(encoded(known, request_id), status_code=known.status, media_type=MEDIA_TYPE, headers=headers)


def encoded(error: PostroadError, request_id: str | None) -> bytes:
    """The body of a problem."""
    return msgspec.json.encode(problem(error, request_id=request_id))


def headers_of(error: PostroadError) -> dict[str, str]:
    """The headers that go with the status of an error."""
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status in (429, 503):
        return {"Retry-After": str(max(1, math.ceil(getattr(error, "retry_after", None) or 1)))}
    return {}


def _known(error: Exception) -> PostroadError | None:
    if isinstance(error, PostroadError):
        return error
    if isinstance(error, ValidationException):
        return _invalid(error)
    if isinstance(error, NotFoundException):
        return RouteNotFound("there is nothing at this address")
    if isinstance(error, MethodNotAllowedException):
        return MethodNotAllowed("the address does not take this method")
    if isinstance(error, HTTPException) and 400 <= error.status_code < 500:
        return InvalidInput(error.detail)
    return None


def _invalid(error: ValidationException) -> InvalidInput:
    """The first of the fields that the framework refused."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    field = first.get("key")
    message = str(first.get("message", error.detail))
    return InvalidInput(f"{field or 'request'}: {message[:1].lower()}{message[1:]}", field=field)


def _allow(error: Exception) -> dict[str, str]:
    if not isinstance(error, MethodNotAllowedException):
        return {}
    named = {name.strip() for name in (error.headers or {}).get("allow", "").split(",")}
    methods = (named - {"OPTIONS", ""}) | ({"HEAD"} if "GET" in named else set())
    return {"Allow": ", ".join(sorted(methods))}


Limit = Annotated[int, QueryParameter(ge=1, le=100, description="How many, 1 to 100.")]
Cursor = Annotated[str | None, QueryParameter(description="`next_cursor` of the page before.")]
QueueName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]{1,80}(\.fifo)?$", description="The queue's name.")]
AgentId = Annotated[str, PathParameter(description="The agent's id.")]
Discard = Annotated[bool, QueryParameter(description="Whether what waits goes too.")]
Visibility = Annotated[float, QueryParameter(ge=1, le=43_200, description="Seconds of a lease.")]
Name = Annotated[str, PathParameter(description="Its name.")]
Confirm = Annotated[str, QueryParameter(description="The queue's name once more.")]
Payload = Annotated[int, QueryParameter(ge=0, le=1, description="1 shows the bodies too.")]


def checked(queue: str) -> str:
    """The queue's name, refused when no queue could have it."""
    return check_name(queue, field="queue")
