"""The request: who asks, and a body that is read once, in time, within its limit and as strict JSON."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from litestar import Request, Response
from litestar.types import ASGIApp, HTTPReceiveMessage, Receive, Scope, Send
from litestar.types.empty import Empty

from postroad.errors import BodyTooLarge, BodyTooSlow, InvalidInput, NotJSON
from postroad.http.context import Context
from postroad.http.forms import Form, decode
from postroad.http.identities import Identity

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
    """An answer that goes on for as long as its caller listens."""

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
