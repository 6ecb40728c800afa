"""What applies to every request before its route is found, and to every answer."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from urllib.parse import parse_qsl

from litestar import types
from litestar.enums import ScopeType

from postroad import failpoints
from postroad.errors import HeadersTooLarge, HostNotAllowed, PostroadError, RouteNotFound, TokenInUrl
from postroad.http.audits import record
from postroad.http.context import Context
from postroad.http.requests import StreamResponse, encoded, headers_of
from postroad.telemetry import REQUEST_ID, get_logger
from postroad.views import PROBLEM_MEDIA_TYPE

_MOST_HEADERS = 100
_MOST_HEADER_BYTES = 32_768
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_DISCARD_SECONDS = 30.0
_SILENT_SECONDS = 5.0
# What the server put into the scope and may read while it sends an answer.
_OF_SERVER = frozenset(
    {"type", "http_version", "server", "client", "scheme", "method", "root_path", "path", "query_string", "headers"}
)
_QUIET = frozenset({"/health", "/ready"})
_SECURITY = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_log = get_logger("http")
_logging = logging.getLogger("postroad.http")


class RequestMiddleware:
    """Gives every request an id, refuses foreign hosts and tokens in URLs, and adds headers to every answer."""

    def __init__(self, app: types.ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        settings = context.settings
        self._hosts = _LOOPBACK | {_host_name(name) for name in (settings.host, *settings.allowed_hosts)}

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        head, quiet = method == "HEAD", path in _QUIET
        follows = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        # A client that expects "100 Continue" sends no body that is refused.
        body = _Body(receive) if follows and b"expect" not in headers else None
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        answer = _Answer(send, request_id, headless=head, body=body, probe=quiet)
        REQUEST_ID.set(request_id)
        answer.before = partial(record, self._context, scope)
        scope.setdefault("state", {}).update(context=self._context, request_id=request_id, headers=headers, head=head)
        if (refusal := self._refusal(scope, headers)) is not None:
            await _refuse(refusal, answer)
        else:
            # HEAD is GET without the body. The framework would answer OPTIONS itself; no route has TRACE.
            scope["method"] = {"HEAD": "GET", "OPTIONS": "TRACE"}.get(method, method)  # type: ignore[typeddict-item]
            await self._app(scope, receive if body is None else body, answer)
        route = scope.get("path_template", "-")
        if (stream := scope["state"].get(StreamResponse.STREAM)) is not None:
            # A stream lasts long: drop what only finding and running the route needed.
            for key in scope.keys() - _OF_SERVER:
                del scope[key]  # type: ignore[misc]  # the framework put them there
            del headers
            answer.before = None
            try:
                await stream.run(receive, answer, send)
            except PostroadError as error:
                await _refuse(error, answer)
        seconds = time.monotonic() - started
        self._context.request_metrics.add(route, method, answer.status, seconds if stream is None else None)
        if not quiet and _logging.isEnabledFor(logging.INFO):
            _log.info(
                "http_request",
                request_id=answer.request_id,
                method=method,
                route=route,
                status=answer.status,
                duration_ms=round(seconds * 1000, 3),
            )

    def _refusal(self, scope: types.HTTPScope, headers: dict[bytes, bytes]) -> PostroadError | None:
        given = list(scope["headers"])
        if len(given) > _MOST_HEADERS:
            return HeadersTooLarge(f"{len(given)} headers are more than {_MOST_HEADERS}")
        if sum(map(len, chain.from_iterable(given))) > _MOST_HEADER_BYTES:
            return HeadersTooLarge(f"the headers are longer than {_MOST_HEADER_BYTES:,} bytes")
        host = headers.get(b"host", b"").decode("latin-1")
        if _host_name(host) not in self._hosts:
            return HostNotAllowed(f"host {host!r} is not served here")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name in ("token", "access_token") for name, _ in query):
            return TokenInUrl("a token in the URL is not accepted")
        # The router treats "/queues/" as "/queues", so an empty name would list all queues.
        if "//" in scope["path"] or (scope["path"] not in ("/", "/ui/") and scope["path"].endswith("/")):
            return RouteNotFound("there is nothing at this address")
        return None


class _Body:
    """The body of a request, and whether it was read to its end."""

    def __init__(self, receive: types.Receive) -> None:
        self._receive = receive
        self.is_read = False

    async def __call__(self) -> types.HTTPReceiveMessage | types.WebSocketReceiveMessage:
        message = await self._receive()
        self.is_read = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read and drop the rest, unless it arrives too slowly.

        If the connection were closed while the client still sends, it would be reset and the answer lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_read:
                    async with asyncio.timeout(_SILENT_SECONDS):
                        await self()


class _Answer:
    """Sends an answer: adds the headers that every answer has, and leaves out the body for HEAD."""

    def __init__(self, send: types.Send, request_id: str, *, headless: bool, body: _Body | None, probe: bool) -> None:
        self._send = send
        self._headless = headless
        self._body = body
        self._probe = probe
        self.request_id = request_id
        self.status = 0
        self.before: Callable[[int, Iterable[tuple[bytes, bytes]]], Awaitable[None]] | None = None
        """Is called once, with status and headers, before the answer begins."""

    async def __call__(self, message: types.Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.before is not None:
                await self.before(self.status, message["headers"])
            # Nobody knows how often probes come, so they must not count.
            if not self._probe:
                failpoints.hit("http.before_reply")
            message["headers"] = [*message["headers"], *_SECURITY, (b"x-request-id", self.request_id.encode())]
        elif message["type"] == "http.response.body":
            if self._headless:
                message["body"] = b""
            if self._body is not None and not self._body.is_read and not message.get("more_body", False):
                # The answer is complete; the connection may be closed once the request is complete too.
                await self._send({**message, "more_body": True})
                await self._body.discard()
                message = {**message, "body": b""}
        await self._send(message)


async def _refuse(error: PostroadError, answer: _Answer) -> None:
    body = encoded(error, answer.request_id)
    headers = {"content-type": PROBLEM_MEDIA_TYPE, "content-length": str(len(body)), **headers_of(error)}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await answer({"type": "http.response.start", "status": error.status, "headers": raw})
    await answer({"type": "http.response.body", "body": body, "more_body": False})


def _host_name(host: str) -> str:
    """Return the host without its port in lower case, an IPv6 address in brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return f"[{host}]" if host.count(":") > 1 else host.partition(":")[0]
