"""The door: what holds for every request before a route is found, and for every answer on its way out."""

from __future__ import annotations

import logging
import re
import time
import uuid
from urllib.parse import parse_qsl

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from postroad import failpoints
from postroad.errors import HostNotAllowed, PostroadError, RouteNotFound, TokenInUrl
from postroad.http.context import Context
from postroad.http.problems import MEDIA_TYPE, encoded, headers_of
from postroad.http.requests import Endless
from postroad.telemetry import get_logger

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# What the server put into the scope and may look at while it sends an answer.
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


class Door:
    """Names every request, refuses foreign hosts and tokens in URLs, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        settings = context.settings
        self._hosts = _LOOPBACK | {_host_name(name) for name in (settings.host, *settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = dict(scope["headers"])
        answer = _Answer(send, _request_id(headers.get(b"x-request-id")), headless=scope["method"] == "HEAD")
        head = scope["method"] == "HEAD"
        scope.setdefault("state", {}).update(
            context=self._context, request_id=answer.request_id, headers=headers, head=head
        )
        method, path = scope["method"], scope["path"]
        if (refusal := self._refusal(scope, headers)) is not None:
            await _refuse(refusal, answer)
        else:
            _as_route_methods(scope)
            await self._app(scope, receive, answer)
        route = scope.get("path_template", "-")
        if (running := scope["state"].get(Endless.RUNNING)) is not None:
            _forget_request(scope)
            del headers
            try:
                await running.run(receive, answer, send)
            except PostroadError as error:
                await _refuse(error, answer)
        if path not in _QUIET and _logging.isEnabledFor(logging.INFO):
            _log.info(
                "http_request",
                request_id=answer.request_id,
                method=method,
                route=route,
                status=answer.status,
                duration_ms=round((time.monotonic() - started) * 1000, 3),
            )

    def _refusal(self, scope: HTTPScope, headers: dict[bytes, bytes]) -> PostroadError | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if _host_name(host) not in self._hosts:
            return HostNotAllowed(f"host {host!r} is not served here")
        query = scope["query_string"]
        if b"token" in query and {"token", "access_token"} & {
            name for name, _ in parse_qsl(query.decode("latin-1"), True)
        }:
            return TokenInUrl("a token in the URL is not accepted")
        # The router takes "/queues/" for "/queues", which would read an empty name as the list of all.
        if "//" in scope["path"] or (scope["path"] != "/" and scope["path"].endswith("/")):
            return RouteNotFound("there is nothing at this address")
        return None


class _Answer:
    """The way out: adds the headers that every answer has, and leaves the body out for HEAD."""

    def __init__(self, send: Send, request_id: str, *, headless: bool) -> None:
        self._send = send
        self._headless = headless
        self.request_id = request_id
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            failpoints.hit("http.before_reply")
            message["headers"] = [
                *message["headers"], *_SECURITY, (b"x-request-id", self.request_id.encode()),
            ]  # fmt: skip
        elif message["type"] == "http.response.body" and self._headless:
            message["body"] = b""
        await self._send(message)


async def _refuse(error: PostroadError, answer: _Answer) -> None:
    body = encoded(error, answer.request_id)
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **headers_of(error)}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await answer({"type": "http.response.start", "status": error.status, "headers": raw})
    await answer({"type": "http.response.body", "body": body, "more_body": False})


def _forget_request(scope: HTTPScope) -> None:
    """Let go of what only finding and running the route needed."""
    for key in scope.keys() - _OF_SERVER:
        del scope[key]  # type: ignore[misc]  # the framework put them there


def _as_route_methods(scope: HTTPScope) -> None:
    """HEAD is GET without its body; OPTIONS, which the framework would answer itself, is a method nobody takes."""
    if scope["method"] == "HEAD":
        scope["method"] = "GET"
    elif scope["method"] == "OPTIONS":
        scope["method"] = "TRACE"


def _request_id(given: bytes | None) -> str:
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return uuid.uuid4().hex


def _host_name(host: str) -> str:
    """The host without its port, in small letters; IPv6 addresses in brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return f"[{host}]" if host.count(":") > 1 else host.partition(":")[0]
