"""Server-Sent Events of an agent: leased while the connection is open, released when it closes.

An idle stream is one task that waits for the end of the connection. Polls bring it events, acks make room for more, and
one timer for all streams sends keep-alive comments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from typing import Final

import msgspec
from litestar.types import Receive, Send

from postroad.errors import PostroadError, TooManyPolls
from postroad.http.access import AgentAccess, LeasedMessages
from postroad.http.polls import Polls, Waiter, give_back, gone
from postroad.http.tokens import Identities
from postroad.queues import Delivery, Queue
from postroad.telemetry import get_logger
from postroad.views import agent_delivery

MAX_UNACKED: Final = 10
KEEP_ALIVE_SECONDS: Final = 15.0
MAX_HELD_SECONDS: Final = 300.0
"""How long a stream keeps a lease that nobody acks, unless the requested visibility is longer."""
_TICK_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 2.0
CONNECTED: Final = b": connected\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def start_stream(start: Send) -> None:
    """Send the head of a stream."""
    await start({"type": "http.response.start", "status": 200, "headers": _HEADERS})


async def send_part(send: Send, part: bytes) -> None:
    """Send a comment or an event of a stream."""
    await send({"type": "http.response.body", "body": part, "more_body": True})


def event(kind: str, id: str, document: object) -> bytes:
    """Return an event of a stream."""
    return b"event: %b\nid: %b\ndata: %b\n\n" % (kind.encode(), id.encode(), msgspec.json.encode(document))


async def close_stream(send: Send) -> None:
    """Send the end of a stream; do not wait for a caller that reads nothing."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def end_at_once(running: asyncio.Timeout | None) -> None:
    """End what runs under the timeout."""
    if running is not None and not running.expired():
        running.reschedule(asyncio.get_running_loop().time())


class AgentStreams:
    """The open streams of one server, by agent."""

    def __init__(self, polls: Polls, access: AgentAccess, identities: Identities, leased: LeasedMessages) -> None:
        self.polls = polls
        self.agent_access = access
        self.leased = leased
        self._identities = identities
        self._tokens_seen = identities.version
        self.stopping = False
        self._streams: dict[str, list[AgentStream]] = {}
        # Those that sent something longest ago come first.
        self._last_sent: dict[AgentStream, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alives: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """How many streams are open."""
        return sum(map(len, self._streams.values()))

    def add(self, stream: AgentStream) -> None:
        """Add a stream until `remove`; raise `TooManyPolls` if the server or the agent has too many."""
        self.agent_access.begin_waiting(stream.agent_id)
        try:
            self.polls.join(stream.queue, stream.waiter)
        except TooManyPolls:
            self.agent_access.end_waiting(stream.agent_id)
            raise
        self._streams.setdefault(stream.agent_id, []).append(stream)
        self.sent_something(stream)
        self._start_timer()

    def remove(self, stream: AgentStream) -> None:
        """Remove a stream."""
        self.polls.leave(stream.queue, stream.waiter)
        self.agent_access.end_waiting(stream.agent_id)
        self._last_sent.pop(stream, None)
        self._streams[stream.agent_id].remove(stream)
        if not self._streams[stream.agent_id]:
            del self._streams[stream.agent_id]

    def sent_something(self, stream: AgentStream) -> None:
        """Note that the stream has sent something."""
        self._last_sent.pop(stream, None)
        self._last_sent[stream] = asyncio.get_running_loop().time()

    def settled(self, agent_id: str, receipts: list[str]) -> None:
        """Let the agent's streams send more, after receipts were settled."""
        for stream in self._streams.get(agent_id, ()):
            stream.forget(receipts)

    def check(self, agent_id: str) -> None:
        """Check that the agent exists and that the tokens of its streams are valid."""
        for stream in self._streams.get(agent_id, ()):
            stream.look()

    def stop(self) -> None:
        """End all streams at once."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    def _start_timer(self) -> None:
        if self._timer is None and not self.stopping:
            self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Check the streams if tokens have changed, and send a keep-alive where nothing was sent for long."""
        self._timer = None
        if self._last_sent:
            self._start_timer()
        # A token stays valid while the file of tokens cannot be read.
        with suppress(PostroadError):
            self._identities.look()
        if self._identities.version != self._tokens_seen:
            self._tokens_seen = self._identities.version
            for agent_id in self._streams:
                self.check(agent_id)
        now = asyncio.get_running_loop().time()
        silent = []
        for stream, sent_at in self._last_sent.items():
            if now - sent_at < KEEP_ALIVE_SECONDS:
                break
            silent.append(stream)
        if silent:
            sending = asyncio.create_task(_keep_alive(silent))
            self._keep_alives.add(sending)
            sending.add_done_callback(self._keep_alives.discard)


async def _keep_alive(silent: Sequence[AgentStream]) -> None:
    """Send a keep-alive on each stream. One whose caller does not read delays the others until the next tick only."""
    for stream in silent:
        await stream.keep_alive()


@dataclass(slots=True, eq=False)
class _Held:
    """A delivery that the stream has leased, and whether it was handed to the transport."""

    delivery: Delivery
    leased_at: float
    written: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class AgentStream:
    """One connection: the events that it has leased, and what it sends."""

    streams: AgentStreams
    queue: Queue
    agent_id: str
    visibility: float
    """For how many seconds an event is leased and extended each time."""
    check: InitVar[Callable[[], object]]
    """Raises, on a thread, once the caller is no longer allowed to read the stream."""
    waiter: Waiter = field(init=False)
    _send: Send = field(init=False)
    _held: dict[str, _Held] = field(init=False, default_factory=dict)
    _out: list[_Held] = field(init=False, default_factory=list)
    _busy: bool = field(init=False, default=False)
    _writing: asyncio.Task[None] | None = field(init=False, default=None)
    _extension: asyncio.TimerHandle | None = field(init=False, default=None)
    _extending: asyncio.Task[None] | None = field(init=False, default=None)
    _ending: asyncio.Timeout | None = field(init=False, default=None)

    def __post_init__(self, check: Callable[[], object]) -> None:
        self.waiter = Waiter(
            room=MAX_UNACKED, visibility=self.visibility, take=self._take, fail=self._fail, check=check
        )

    async def run(self, receive: Receive, start: Send, send: Send) -> None:
        """Stream until the connection closes, the agent or the token is gone, or the server stops.

        `start` sends the head of the answer, `send` the rest. `TooManyPolls` is raised before anything is sent.
        """
        self._send = send
        self.streams.add(self)
        try:
            await start_stream(start)
            await send_part(send, CONNECTED)
            async with asyncio.timeout(None) as self._ending:
                if self.streams.stopping:
                    self.end()
                await gone(receive)
            return
        except TimeoutError:
            # The server ends the stream.
            pass
        finally:
            self.streams.remove(self)
            self._release_all()
        await close_stream(send)

    def look(self) -> None:
        """Check whether there is something to send, and whether it may be sent."""
        self.streams.polls.look(self.queue)

    def forget(self, receipts: Iterable[str]) -> None:
        """Forget these receipts; there may be room for more."""
        held = len(self._held)
        for receipt in receipts:
            self._held.pop(receipt, None)
        if len(self._held) < held:
            self.waiter.room = MAX_UNACKED - len(self._held)
            self.look()

    async def keep_alive(self) -> None:
        """Send a comment, so that no proxy closes the connection."""
        if self._ending is None:
            return
        self.streams.sent_something(self)
        if not self._busy:
            self._busy = True
            await send_part(self._send, KEEP_ALIVE)
            self._busy = False
            self._write_soon()

    def end(self) -> None:
        """End the stream."""
        end_at_once(self._ending)

    def _take(self, leased: list[Delivery]) -> None:
        self.streams.leased.remember(self.queue, leased)
        now = asyncio.get_running_loop().time()
        for delivery in leased:
            held = self._held[delivery.receipt] = _Held(delivery, now)
            self._out.append(held)
        self.waiter.room = MAX_UNACKED - len(self._held)
        if leased:
            self._write_soon()
            self._extend_in_time()

    def _fail(self, error: Exception) -> None:
        get_logger("http").info("http_stream_ended", error=str(error))
        self.end()

    def _write_soon(self) -> None:
        if self._out and not self._busy:
            self._busy = True
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._out:
            held = self._out.pop(0)
            if held.delivery.receipt in self._held:
                await send_part(self._send, event("message", held.delivery.message_id, agent_delivery(held.delivery)))
                held.written = True
                self.streams.sent_something(self)
        self._busy = False
        self._writing = None

    def _extend_in_time(self) -> None:
        if self._extension is None and self._held:
            loop = asyncio.get_running_loop()
            self._extension = loop.call_later(self.visibility / 3, self._extend_soon)

    def _extend_soon(self) -> None:
        self._extension = None
        self._extending = asyncio.create_task(self._extend())

    async def _extend(self) -> None:
        """Extend the leases, but none for ever; forget those that were settled elsewhere or have expired."""
        now = asyncio.get_running_loop().time()
        longest = max(MAX_HELD_SECONDS, self.visibility)
        kept, over = [], []
        for held in list(self._held.values()):
            age = now - held.leased_at
            if age + self.visibility <= MAX_HELD_SECONDS:
                kept.append(held.delivery)
            elif not held.written or age >= longest:
                over.append(held)
        unseen = [held.delivery for held in over if not held.written]
        with suppress(PostroadError):
            stale = await self.streams.polls.run(lambda: self._stale(kept, unseen))
            self.forget([*stale, *(held.delivery.receipt for held in over)])
        self._extend_in_time()

    def _stale(self, kept: list[Delivery], unseen: list[Delivery]) -> list[str]:
        """Extend `kept`, release `unseen`, and return the receipts that are no longer valid."""
        if unseen:
            give_back(self.queue, unseen)
        results = self.queue.extend(kept, seconds=self.visibility) if kept else []
        return [delivery.receipt for delivery, result in zip(kept, results, strict=True) if not result.ok]

    def _release_all(self) -> None:
        """Release what is held, without waiting: the connection may close at any point.

        What was written may have been read, so its receive counts, unless the server stops.
        """
        self._ending = None
        for task in (self._writing, self._extending, self._extension):
            if task is not None:
                task.cancel()
        seen = [held.delivery for held in self._held.values() if held.written and not self.streams.stopping]
        unseen = [held.delivery for held in self._held.values() if not held.written or self.streams.stopping]
        self._held.clear()
        if seen:
            self.streams.polls.run_quietly(lambda: self.queue.release(seen))
        if unseen:
            self.streams.polls.run_quietly(lambda: give_back(self.queue, unseen))
