"""Long polls: many callers wait for one queue, and one thread of ours waits in the queue for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from postroad.errors import TooManyPolls
from postroad.queues import AckResult, Delivery, Queue

MAX_OPEN = 1_000
# A waiting thread looks up this often, to see that nobody waits any more or that the server stops.
_SLICE_SECONDS = 2.0

Gone = Callable[[], Coroutine[None, None, None]]
"""Returns when the caller has gone away."""


@dataclass(slots=True, eq=False)
class _Waiter:
    max_messages: int
    visibility: float | None
    until: float
    leased: asyncio.Future[list[Delivery]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CallerGone(Exception):
    """The caller hung up; what was leased for it is given back."""


class Polls:
    """Everyone who waits. Waiting blocks neither the event loop nor the threads of other routes."""

    def __init__(self, *, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self.threads = ThreadPoolExecutor(max_open, thread_name_prefix="poll")
        self._waiting: dict[str, deque[_Waiter]] = {}
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._open = 0
        self._stopping = False

    @property
    def open(self) -> int:
        """How many wait now."""
        return self._open

    async def receive(
        self, queue: Queue, *, max_messages: int, wait: float, visibility: float | None, gone: Gone
    ) -> list[Delivery]:
        """Lease messages, waiting up to `wait` seconds for the first; `CallerGone` when nobody waits."""
        until = asyncio.get_running_loop().time() + wait
        waiter = _Waiter(max_messages=max_messages, visibility=visibility, until=until)
        with self.counted():
            try:
                self._enqueue(queue, waiter)
                if await _left(waiter, gone, wait):
                    await self._take_back(queue, waiter)
                    raise CallerGone
                return waiter.leased.result() if waiter.leased.done() else []
            finally:
                self._leave(queue, waiter)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count somebody who waits, poll or stream; `TooManyPolls` when there are too many."""
        if self._open >= self._max_open:
            raise TooManyPolls(f"{self._open} long polls and streams are open, which is the limit")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def stop(self) -> None:
        """Answer everyone with what there is: nothing."""
        self._stopping = True
        for waiters in self._waiting.values():
            for waiter in waiters:
                _give(waiter, [])
        await asyncio.gather(*self._pumps.values(), return_exceptions=True)
        self.threads.shutdown(wait=False)

    def _enqueue(self, queue: Queue, waiter: _Waiter) -> None:
        if self._stopping:
            _give(waiter, [])
            return
        self._waiting.setdefault(_line(queue), deque()).append(waiter)
        if _line(queue) not in self._pumps:
            self._pumps[_line(queue)] = asyncio.create_task(self._pump(queue))

    async def _take_back(self, queue: Queue, waiter: _Waiter) -> None:
        if waiter.leased.done() and (leased := waiter.leased.result()):
            await asyncio.get_running_loop().run_in_executor(self.threads, give_back, queue, leased)

    def _leave(self, queue: Queue, waiter: _Waiter) -> None:
        _drop(self._waiting.get(_line(queue), deque()), waiter)

    async def _pump(self, queue: Queue) -> None:
        """Receive for the first in line until the line is empty."""
        waiters = self._waiting[_line(queue)]
        loop = asyncio.get_running_loop()
        try:
            while waiters and not self._stopping:
                first = waiters[0]
                wait = max(0.0, min(_SLICE_SECONDS, first.until - loop.time()))
                try:
                    leased = await loop.run_in_executor(self.threads, _receive, queue, first, wait)
                except Exception as error:
                    _fail(first, error)
                    _drop(waiters, first)
                    continue
                if leased:
                    await self._hand_over(queue, first, leased)
        finally:
            del self._pumps[_line(queue)], self._waiting[_line(queue)]

    async def _hand_over(self, queue: Queue, meant_for: _Waiter, leased: list[Delivery]) -> None:
        """Give what was leased to whom it was meant for, or to the next who asked for the same, or back."""
        waiters = self._waiting[_line(queue)]
        for waiter in [meant_for, *waiters]:
            same = waiter.visibility == meant_for.visibility and waiter.max_messages >= len(leased)
            if waiter in waiters and same and not waiter.leased.done():
                _give(waiter, leased)
                _drop(waiters, waiter)
                return
        await asyncio.get_running_loop().run_in_executor(self.threads, give_back, queue, leased)


@runtime_checkable
class Undoable(Protocol):
    """A queue that takes back what its receiver did not see, without counting the receive."""

    def undo(self, deliveries: Sequence[Delivery]) -> list[AckResult]: ...


def give_back(queue: Queue, leased: Sequence[Delivery]) -> None:
    """Let others receive what nobody was there for."""
    if isinstance(queue, Undoable):
        queue.undo(leased)
    else:
        queue.release(leased)


def _line(queue: Queue) -> str:
    """Where callers stand in line: a lane and a queue of the same name are two."""
    return f"{type(queue).__name__} {queue.name}"


async def _left(waiter: _Waiter, gone: Gone, wait: float) -> bool:
    """Wait until there is something for the waiter, or its time is over, or it has gone, which is True."""
    leaving = asyncio.create_task(gone())
    try:
        waiting: set[asyncio.Future[Any]] = {waiter.leased, leaving}
        await asyncio.wait(waiting, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})
    return not leaving.cancelled()


def _receive(queue: Queue, waiter: _Waiter, wait: float) -> list[Delivery]:
    return queue.receive(max_messages=waiter.max_messages, wait=wait, visibility=waiter.visibility)


def _drop(waiters: deque[_Waiter], waiter: _Waiter) -> None:
    with suppress(ValueError):
        waiters.remove(waiter)


def _give(waiter: _Waiter, leased: list[Delivery]) -> None:
    if not waiter.leased.done():
        waiter.leased.set_result(leased)


def _fail(waiter: _Waiter, error: Exception) -> None:
    if not waiter.leased.done():
        waiter.leased.set_exception(error)
