"""`GET /live`: the overview as Server-Sent Events, measured once a second for all who watch.

An event is sent when something has changed. Its id is a digest of what matters, so a viewer that comes back with the id
that it saw last, also to another server, is sent the overview only if it differs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from litestar.types import Receive, Send

from postroad.errors import PostroadError
from postroad.http import server_sent_events
from postroad.http.overview import Overviews
from postroad.http.polls import Polls, gone
from postroad.views import Overview

_TICK_SECONDS: Final = 1.05
# What only grows older, as charts and ages do, is sent less often than what has changed.
_AGEING_SECONDS: Final = 5.0
_STUCK_SECONDS: Final = 30.0


class Frame(msgspec.Struct, frozen=True):
    """One event as it is sent to all viewers of a window."""

    id: str
    body: bytes
    ageing: bytes
    """What grows older by itself."""

    @classmethod
    def of(cls, document: Overview) -> Frame:
        """Return the event of an overview."""
        matters = msgspec.json.encode((document.totals, document.backlog, document.attention))
        digest = hashlib.blake2s(matters, digest_size=12).hexdigest()
        body = server_sent_events.event("overview", digest, document)
        return cls(digest, body, msgspec.json.encode((document.series, document.lag_seconds)))


class LiveOverviews:
    """The viewers of one server, and the task that measures for them while there are any."""

    def __init__(self, overviews: Overviews, polls: Polls) -> None:
        self.polls = polls
        self._overviews = overviews
        self._viewers: set[Viewer] = set()
        self._frames: dict[int, Frame] = {}
        self._sent_at: dict[int, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self.stopping = False

    @property
    def open(self) -> int:
        """How many watch."""
        return len(self._viewers)

    async def join(self, viewer: Viewer) -> None:
        """Add a viewer until `leave`, and let it send what is known."""
        self._viewers.add(viewer)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        with suppress(PostroadError):
            frame = self._frames.get(viewer.window)
            if frame is None:
                frame = self._frames[viewer.window] = Frame.of(await self._overviews.document(viewer.window))
            viewer.show(frame)

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        self._viewers.discard(viewer)
        if not self._viewers and self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._frames.clear()
            self._sent_at.clear()

    def stop(self) -> None:
        """End all streams at once."""
        self.stopping = True
        for viewer in list(self._viewers):
            viewer.end()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            # While the tokens cannot be read, or the storage does not answer, viewers keep what they have.
            for viewer in list(self._viewers):
                with suppress(PostroadError):
                    if not viewer.is_allowed():
                        viewer.end()
            with suppress(PostroadError):
                await self._look()

    async def _look(self) -> None:
        found = await self._overviews.measured()
        now = asyncio.get_running_loop().time()
        for window in {viewer.window for viewer in self._viewers}:
            before, frame = self._frames.get(window), Frame.of(self._overviews.compose(found, window))
            is_old = now - self._sent_at.get(window, 0.0) >= _AGEING_SECONDS
            if before is None or frame.id != before.id or (is_old and frame.ageing != before.ageing):
                self._frames[window], self._sent_at[window] = frame, now
                for viewer in self._viewers:
                    if viewer.window == window:
                        viewer.show(frame, again=True)


class Viewer:
    """One connection.

    Args:
        live: All connections.
        window: The seconds that the charts show.
        last_id: The id of the event that the viewer saw last, if it was connected before.
        is_allowed: Returns whether its token or session is still valid.
    """

    def __init__(
        self, live: LiveOverviews, *, window: int, last_id: str | None, is_allowed: Callable[[], bool]
    ) -> None:
        self.window = window
        self.is_allowed = is_allowed
        self._live = live
        self._seen = last_id
        self._frame: Frame | None = None
        self._news = asyncio.Event()
        self._ending: asyncio.Timeout | None = None

    def show(self, frame: Frame, *, again: bool = False) -> None:
        """Send the event soon; one that was seen only `again`. A slow viewer misses those in between."""
        if again or frame.id != self._seen:
            self._frame = frame
            self._news.set()

    def end(self) -> None:
        """End the stream."""
        server_sent_events.end_at_once(self._ending)

    async def run(self, receive: Receive, start: Send, send: Send) -> None:
        """Stream until the connection closes, the token is gone, or the server stops.

        `start` sends the head of the answer, `send` the rest. `TooManyPolls` is raised before anything is sent.
        """
        with self._live.polls.counted():
            leaving = asyncio.create_task(gone(receive))
            leaving.add_done_callback(lambda _: self.end())
            try:
                await server_sent_events.start_stream(start)
                async with asyncio.timeout(None) as self._ending:
                    if self._live.stopping or leaving.done():
                        self.end()
                    await self._stream(send)
            except TimeoutError:
                # The stream is ended, or its caller reads nothing.
                pass
            finally:
                self._ending = None
                self._live.leave(self)
                leaving.cancel()
        await server_sent_events.close_stream(send)

    async def _stream(self, send: Send) -> None:
        await _write(send, server_sent_events.CONNECTED)
        await self._live.join(self)
        while True:
            try:
                async with asyncio.timeout(server_sent_events.KEEP_ALIVE_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                await _write(send, server_sent_events.KEEP_ALIVE)
                continue
            self._news.clear()
            if self._frame is not None:
                self._seen = self._frame.id
                await _write(send, self._frame.body)


async def _write(send: Send, body: bytes) -> None:
    async with asyncio.timeout(_STUCK_SECONDS):
        await server_sent_events.send_part(send, body)
