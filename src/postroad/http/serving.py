"""Listening: the HTTP server with the time limits that it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from postroad.errors import InvalidInput
from postroad.http.problems import MEDIA_TYPE, encoded

_HEADER_SECONDS = 15.0
_KEEP_ALIVE_SECONDS = 75
_STOP_SECONDS = 8


class PatientProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time, and speaks of errors in our form."""

    header_seconds = _HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        super().connection_made(transport)
        self._expect_more()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering():
            self._expect_nothing()
        else:
            self._expect_more()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering():
            self._expect_nothing()
            if self.conn.their_state is h11.SEND_BODY:
                # The rest of a body that was refused: it may trickle in for a while, but not for ever.
                self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_more(self) -> None:
        """Measure the time from here, unless it is being measured already."""
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answering(self) -> bool:
        # The base says that there is always a cycle; before the first request there is none.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        body = encoded(InvalidInput("this is not an HTTP request"), None)
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that leaves signals to whoever started the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, **options: Any) -> Server:
    """A server for the app; `serve(sockets=[…])` runs it until `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
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
