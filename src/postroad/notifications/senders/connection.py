"""One connection to a provider: many posts at once, each of which gets its answer as soon as it arrives.

A server that shuts down sends GOAWAY with the last stream that it still answers. h2 would end the
connection then and refuse every later frame, so GOAWAY frames are removed before h2 sees them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import httpx
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RemoteSettingsChanged, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error

from postroad.notifications.senders.addresses import IDLE_SECONDS, Provider
from postroad.notifications.senders.answers import Answer

_READ_BYTES: Final = 65_536
_MOST_BYTES: Final = 65_536
_HEADER_BYTES: Final = 9
_GOAWAY: Final = 7
# What h2 would refuse as too short or too long is left to it.
_GOAWAY_SIZES: Final = range(_HEADER_BYTES + 8, _HEADER_BYTES + 16_385)
_STREAM_NUMBER: Final = 0x7FFF_FFFF
Header = tuple[str, str]


class NoAnswer(Exception):
    """No answer came, and the post may or may not have arrived; `args` say why."""


class Refused(Exception):
    """The provider said that it never began with the post."""


class _Post:
    def __init__(self, headers: Sequence[Header], content: bytes, answer: asyncio.Future[Answer]) -> None:
        self.headers, self.unsent, self.answer = headers, content, answer
        self.stream: int | None = None
        """The number of its stream; None before it has one."""
        self.status, self.answer_headers, self.body = 0, list[Header](), b""


class Connection:
    """Posts to one provider on one HTTP/2 connection, or on many if it speaks HTTP/1.1 only.

    `going_away` is called when the provider wants no further posts on this connection.
    """

    def __init__(self, provider: Provider, number: int, going_away: Callable[[Connection], None]) -> None:
        self.number = number
        self.is_established = False
        self.is_lost = False
        self.heard_at = -math.inf
        """The loop's time at which the provider last sent something."""
        self._provider, self._going_away = provider, going_away
        self._opening: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._http1: httpx.AsyncHTTPTransport | None = None
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._frames = GoAwayFilter()
        self._most_streams = 0
        """How many posts the provider allows at once; 0 until it has said so."""
        self._waiting: deque[_Post] = deque()
        self._streams: dict[int, _Post] = {}

    def is_usable(self, now: float) -> bool:
        """Return whether a post may be sent here at the loop's time `now`."""
        is_idle = self.is_established and not (self._streams or self._waiting)
        is_old = is_idle and now - self.heard_at > IDLE_SECONDS
        return not self.is_lost and not is_old

    async def post(self, url: httpx.URL, headers: Sequence[Header], content: bytes) -> Answer:
        """Post and return the whole answer.

        Raises:
            NoAnswer: No answer came.
            Refused: The provider never began with it.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            # Posts that wait for it get its exception; if all have given up, nobody needs it.
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._opening)
        if self._http1 is not None:
            return await _exchange(self._http1, httpx.Request("POST", url, headers=headers, content=content))
        target = [(":method", "POST"), (":scheme", url.scheme), (":authority", url.netloc.decode())]
        target += [(":path", url.raw_path.decode()), ("content-length", str(len(content)))]
        post = _Post([*target, *headers], content, asyncio.get_running_loop().create_future())
        self._waiting.append(post)
        try:
            self._send_waiting()
            return await post.answer
        finally:
            self._forget(post)

    async def close(self) -> None:
        """Close the connection; posts in progress are not answered."""
        for task in filter(None, (self._opening, self._reading)):
            task.cancel()
        self._end("Closed")
        if self._http1 is not None:
            await self._http1.aclose()
        if self._writer is not None:
            # Without waiting for the provider.
            self._writer.transport.abort()
            with suppress(OSError):
                await self._writer.wait_closed()

    async def _open(self) -> None:
        if self._provider.http1 and self._provider.base_url.startswith("http:"):
            self._http1 = self._provider.http1_transport()
            return
        try:
            reader, self._writer = await self._provider.connect()
        except (OSError, EOFError, ValueError, httpx.InvalidURL, asyncio.LimitOverrunError) as error:
            self.is_lost = True
            raise NoAnswer("ConnectError") from error
        secured = self._writer.get_extra_info("ssl_object")
        if self._provider.http1 and (secured is None or secured.selected_alpn_protocol() != "h2"):
            self._writer.close()
            self._http1 = self._provider.http1_transport()
            return
        self.is_established, self.heard_at = True, asyncio.get_running_loop().time()
        self._h2.initiate_connection()
        self._flush()
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = "ConnectionLost"
        try:
            while data := await reader.read(_READ_BYTES):
                self._received(data)
        except OSError:
            pass
        except (H2Error, ValueError) as error:
            # The provider sent something that is not HTTP/2.
            why = type(error).__name__
        self._end(why)

    def _received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        frames, last_streams = self._frames.split(data)
        for event in self._h2.receive_data(frames):
            self._take(event)
        for last in last_streams:
            self._refuse_above(last)
        self._send_waiting()

    def _take(self, event: Event) -> None:
        if isinstance(event, RemoteSettingsChanged):
            self._most_streams = self._h2.remote_settings.max_concurrent_streams
        post = self._streams.get(getattr(event, "stream_id", None) or 0)
        if post is None:
            return
        if isinstance(event, ResponseReceived):
            headers: Any = event.headers
            post.status, post.answer_headers = int(dict(headers)[":status"]), headers
        elif isinstance(event, DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            post.body = (post.body + event.data)[:_MOST_BYTES]
        elif isinstance(event, StreamEnded):
            _settle(post, Answer(post.status, httpx.Headers(post.answer_headers), post.body))
        elif isinstance(event, StreamReset):
            _settle(post, NoAnswer("StreamReset"))

    def _refuse_above(self, last_stream: int) -> None:
        """Begin with no more posts, and give up the streams that the provider does not answer."""
        self._going_away(self)
        for post in (*self._waiting, *self._streams.values()):
            if post.stream is None or post.stream > last_stream:
                _settle(post, Refused())
        self._waiting.clear()

    def _send_waiting(self) -> None:
        """Begin with as many posts as the provider allows, and send as much of all as it has room for."""
        while self._waiting and len(self._streams) < self._most_streams:
            post = self._waiting.popleft()
            post.stream = self._h2.get_next_available_stream_id()
            self._streams[post.stream] = post
            self._h2.send_headers(post.stream, post.headers, end_stream=not post.unsent)
        for stream, post in self._streams.items():
            while post.unsent and (
                room := min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            ):
                chunk, post.unsent = post.unsent[:room], post.unsent[room:]
                self._h2.send_data(stream, chunk, end_stream=not post.unsent)
        self._flush()

    def _forget(self, post: _Post) -> None:
        if post.stream is None:
            if post in self._waiting:
                self._waiting.remove(post)
            return
        del self._streams[post.stream]
        if not self.is_lost:
            if post.answer.cancelled():
                # Unless the answer came at the same moment.
                with suppress(H2Error):
                    self._h2.reset_stream(post.stream, ErrorCodes.CANCEL)
            self._send_waiting()

    def _end(self, why: str) -> None:
        self.is_lost = True
        for post in (*self._waiting, *self._streams.values()):
            _settle(post, NoAnswer(why))
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(self._h2.data_to_send())


class GoAwayFilter:
    """Removes GOAWAY frames from the bytes of one connection, however they are split."""

    def __init__(self) -> None:
        self._held = b""
        """The beginning of a frame that may be a GOAWAY."""
        self._left = 0
        """How many bytes of the frame that is being passed on are still to come."""

    def split(self, data: bytes) -> tuple[bytes, list[int]]:
        """Return the bytes of all other frames, and from each GOAWAY the last stream that is still answered."""
        data = self._held + data
        passed, last_streams = bytearray(data[: self._left]), []
        at, self._left = len(passed), self._left - len(passed)
        while len(data) - at >= _HEADER_BYTES:
            size = _HEADER_BYTES + int.from_bytes(data[at : at + 3])
            frame = data[at : at + size]
            if frame[3] != _GOAWAY or size not in _GOAWAY_SIZES:
                passed += frame
                self._left = size - len(frame)
            elif len(frame) == size:
                last_streams.append(int.from_bytes(frame[_HEADER_BYTES : _HEADER_BYTES + 4]) & _STREAM_NUMBER)
            else:
                break
            at += len(frame)
        self._held = data[at:]
        return bytes(passed), last_streams


async def _exchange(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> Answer:
    try:
        response = await transport.handle_async_request(request)
        try:
            body = b""
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MOST_BYTES:
                    break
            return Answer(response.status_code, response.headers, body[:_MOST_BYTES])
        finally:
            await response.aclose()
    except httpx.HTTPError as error:
        raise NoAnswer(type(error).__name__) from error


def _settle(post: _Post, answer: Answer | Exception) -> None:
    if post.answer.done():
        return
    if isinstance(answer, Answer):
        post.answer.set_result(answer)
    else:
        post.answer.set_exception(answer)
