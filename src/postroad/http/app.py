"""The app: all routes behind one middleware, and the HTTP server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import h11
import uvicorn
from h11._receivebuffer import ReceiveBuffer
from litestar import Litestar
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from postroad.arguments import build_structs
from postroad.errors import HeadersTooLarge, InvalidInput, PostroadError
from postroad.http.context import Context
from postroad.http.middleware import RequestMiddleware
from postroad.http.openapi import Description
from postroad.http.requests import ApiRequest, answer_error, encoded, guard
from postroad.http.routes import (
    agents,
    dead_letters,
    events,
    history,
    jobs,
    leases,
    outbox,
    overview,
    queues,
    schedules,
    service,
    tasks,
    ui,
)
from postroad.views import PROBLEM_MEDIA_TYPE

ROUTES = tuple(
    handler
    for module in (
        *(service, overview, history, queues, dead_letters, leases, tasks),
        *(jobs, schedules, outbox, agents, events, ui),
    )
    for handler in vars(module).values()
    if isinstance(handler, HTTPRouteHandler)
)


def create_app(context: Context) -> ASGIApp:
    """Return the API that works with the context."""
    build_structs()
    return RequestMiddleware(_routing(), context)


@cache
def _routing() -> ASGIApp:
    """Return the router, which is the same for every context; the middleware gives each request its context."""
    return Litestar(
        ROUTES,
        state=State({"openapi": Description(ROUTES)}),
        request_class=ApiRequest,
        # It runs before the body is read. The framework's own guards do too, but copy the route for every request.
        before_request=guard,
        exception_handlers={Exception: answer_error},
        openapi_config=None,
        logging_config=None,
        # `ApiRequest` checks the limit before and while it reads the body.
        request_max_body_size=None,
    )


_HEADER_SECONDS = 15.0
_KEEP_ALIVE_SECONDS = 75
_STOP_SECONDS = 8


class _StrictLines(ReceiveBuffer):
    """Refuses a line feed without a carriage return in a request's head, which a proxy may have read differently."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        before = len(self)
        lines = super().maybe_extract_lines()
        # Two bytes end each line, and the blank line that ends the head.
        if lines is not None and before - len(self) != sum(map(len, lines)) + 2 * len(lines) + 2:
            raise h11.RemoteProtocolError("a line ends with a bare line feed")
        return lines


class DeadlineProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time, and answers errors as problems."""

    header_seconds = _HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn._receive_buffer = _StrictLines()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering():
            self._cancel_deadline()
        else:
            self._start_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering():
            self._cancel_deadline()
            if self.conn.their_state is h11.SEND_BODY:
                # The rest of a refused body may arrive slowly, but not for ever.
                self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        """Start the deadline, unless it is running already."""
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answering(self) -> bool:
        # The base class declares it, but it is None before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        cause = sys.exception()
        too_large = isinstance(cause, h11.RemoteProtocolError) and cause.error_status_hint == HeadersTooLarge.status
        error: PostroadError = InvalidInput("this is not an HTTP request")
        if too_large:
            error = HeadersTooLarge("the head of the request is too long")
        body = encoded(error, None)
        headers = [("content-type", PROBLEM_MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that leaves signals to the process that runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, **options: Any) -> Server:
    """Return a server for the app; `serve(sockets=[…])` runs it until `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
        **options,
    )
    return Server(config)
