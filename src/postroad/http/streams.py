"""Server-Sent Events of one lane: leased for as long as the connection lives, given back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import msgspec

from postroad.documents import agent_delivery
from postroad.errors import PostroadError
from postroad.http.agents import AgentDesk
from postroad.http.polls import Polls, give_back
from postroad.queues import Delivery, Queue

MAX_UNACKED: Final = 10
KEEP_ALIVE_SECONDS: Final = 15.0
_SLICE_SECONDS: Final = 1.0
T = TypeVar("T")


class LaneStream:
    """What one connection holds, and the text that it is sent."""

    def __init__(
        self, desk: AgentDesk, queue: Queue, polls: Polls, *, agent_id: str, visibility: float
    ) -> None:  # fmt: skip
        self._desk = desk
        self._queue = queue
        self._polls = polls
        self._threads = polls.threads
        self._agent_id = agent_id
        self._visibility = visibility
        self._held: dict[str, Delivery] = {}
        self._extended_at = 0.0

    async def events(self) -> AsyncIterator[bytes]:
        """The stream, until its caller hangs up or the server stops."""
        loop = asyncio.get_running_loop()
        spoke_at = self._extended_at = loop.time()
        with self._polls.counted(), self._desk.waiting(self._agent_id), self._desk.streaming() as bell:
            try:
                yield b": connected\n\n"
                while not self._desk.stopping:
                    for delivery in await self._next(bell):
                        spoke_at = loop.time()
                        yield _text(delivery)
                    if loop.time() - spoke_at >= KEEP_ALIVE_SECONDS:
                        spoke_at = loop.time()
                        yield b": keep-alive\n\n"
            finally:
                # The connection may be gone in the middle of anything: nothing is awaited here.
                self._give_back(list(self._held.values()))

    async def _next(self, bell: asyncio.Event) -> list[Delivery]:
        """What was leased now; none when it is time to look at something else."""
        bell.clear()
        await self._extend_in_time()
        room = MAX_UNACKED - len(self._held)
        if not room or self._desk.stopping:
            await _wait(bell, _SLICE_SECONDS)
            await self._forget_settled()
            return []
        leased = await self._receive(room, bell)
        self._held.update({delivery.receipt: delivery for delivery in leased})
        return leased

    async def _receive(self, room: int, bell: asyncio.Event) -> list[Delivery]:
        wait = min(_SLICE_SECONDS, self._visibility / 3)
        receiving = self._run(
            lambda: self._queue.receive(max_messages=room, wait=wait, visibility=self._visibility)
        )  # fmt: skip
        ringing = asyncio.ensure_future(_stopping(bell, self._desk))
        both: set[asyncio.Future[Any]] = {receiving, ringing}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            receiving.add_done_callback(self._give_back_received)
            raise
        finally:
            ringing.cancel()
        if not receiving.done():
            receiving.add_done_callback(self._give_back_received)
            return []
        return receiving.result()

    async def _extend_in_time(self) -> None:
        """Keep the leases; those that were settled by now are no longer held."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._extended_at >= self._visibility / 3:
            self._extended_at = loop.time()
            await self._forget_settled()

    async def _forget_settled(self) -> None:
        held = list(self._held.values())
        if not held:
            return
        results = await self._run(lambda: self._queue.extend(held, seconds=self._visibility))
        for delivery, result in zip(held, results, strict=True):
            if not result.ok:
                self._held.pop(delivery.receipt, None)

    def _run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _give_back_received(self, receiving: asyncio.Future[list[Delivery]]) -> None:
        if not receiving.cancelled() and receiving.exception() is None:
            self._give_back(receiving.result())

    def _give_back(self, leased: list[Delivery]) -> None:
        if leased:
            self._threads.submit(_quietly, lambda: give_back(self._queue, leased))


async def _wait(bell: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(bell.wait(), seconds)
    except TimeoutError:
        return


async def _stopping(bell: asyncio.Event, desk: AgentDesk) -> None:
    """Return when the server stops; what else the bell says can wait."""
    while not desk.stopping:
        bell.clear()
        await bell.wait()


def _quietly(work: Callable[[], Any]) -> None:
    """Do what helps others sooner; when it fails the leases end by themselves."""
    try:
        work()
    except PostroadError:
        return


def _text(delivery: Delivery) -> bytes:
    data = msgspec.json.encode(agent_delivery(delivery))
    return b"event: message\nid: " + delivery.message_id.encode() + b"\ndata: " + data + b"\n\n"
