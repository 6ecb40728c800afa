"""Waiting for messages: polls and streams stand in line for their queue, and none of them costs a thread.

A queue that can be watched says when something in it changed. Then one look on a thread tells which of these queues
have something to give, and only from those is received. Where a queue cannot be watched, one thread waits inside it for
all who stand in its line.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from postroad.errors import PostroadError, TooManyPolls
from postroad.queues import Delivery, OverflowingQueue, Queue, Watchable

MAX_OPEN: Final = 5_000
_THREADS: Final = 3
_MAX_WAITING_THREADS: Final = 1_000
# A thread that waits in a queue looks up this often, to see that nobody waits any more or that the server stops.
_SLICE_SECONDS: Final = 2.0
# After a look that promised something and a receive that found nothing.
_DOUBT_SECONDS: Final = 0.05
# Another process may have committed something that nobody rang for. To look at every queue then takes some 20 us for
# each, so the more there are the rarer it is done.
_SWEEP_SECONDS_PER_QUEUE: Final = 0.004
# A token that runs out rings no bell.
_CHECK_EVERY: Final = 60.0
_LOOK_AT_ONCE: Final = 500
T = TypeVar("T")

Gone = Callable[[], Coroutine[None, None, None]]
"""Returns when the caller has gone away."""


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """Somebody who stands in line for a queue.

    `room` is how many messages it takes now. On the event loop `take` is called with them, and `fail` with the error
    that ends the waiting. `check` raises, on a thread, when the waiter may not have anything any more.
    """

    room: int
    visibility: float | None
    take: Callable[[list[Delivery]], None]
    fail: Callable[[Exception], None]
    check: Callable[[], object] | None = None
    until: float = math.inf


@dataclass(slots=True, eq=False)
class _Line:
    queue: Queue
    watchable: Watchable | None
    # There may be thousands of lines, and few stand in each: lists are smaller than what is made for long queues.
    waiters: list[Waiter] = field(default_factory=list)
    watching: AbstractContextManager[object] | None = None
    receiving: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    in_doubt: bool = False

    def next(self) -> Waiter | None:
        return next((waiter for waiter in self.waiters if waiter.room > 0), None)

    def schedule(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


_Question = tuple[_Line, Sequence[Waiter]]
_Reply = tuple[_Line, Sequence[tuple[Waiter, Exception]], float | None]


class CallerGone(Exception):
    """The caller hung up; what was leased for it is given back."""


class Polls:
    """Everyone who waits. Waiting blocks neither the event loop nor the threads of other routes."""

    def __init__(self, *, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open = 0
        self._stopping = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="poll")
        self._waiting_threads = ThreadPoolExecutor(_MAX_WAITING_THREADS, thread_name_prefix="wait")
        self._lines: dict[str, _Line] = {}
        # What other threads say; the event loop reads it when it looks.
        self._lock = threading.Lock()
        self._rung: set[_Line] = set()
        self._sweep_wanted = False
        self._look_wanted = False
        self._looking: asyncio.Task[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_not_before = 0.0
        self._checked_at = time.monotonic()

    @property
    def open(self) -> int:
        """How many wait now."""
        return self._open

    async def run(self, work: Callable[[], T]) -> T:
        """Do the storage's part of waiting on a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def run_quietly(self, work: Callable[[], object]) -> None:
        """Do what helps others sooner; when it fails the leases end by themselves."""
        self._threads.submit(_quietly, work)

    async def receive(
        self, queue: Queue, *, max_messages: int, wait: float, visibility: float | None, gone: Gone
    ) -> list[Delivery]:
        """Lease messages, waiting up to `wait` seconds for the first; `CallerGone` when nobody waits."""
        loop = asyncio.get_running_loop()
        leased: asyncio.Future[list[Delivery]] = loop.create_future()
        waiter = Waiter(
            room=max_messages,
            visibility=visibility,
            take=leased.set_result,
            fail=leased.set_exception,
            until=loop.time() + wait,
        )
        self.join(queue, waiter)
        try:
            if await _left(leased, gone, wait):
                if leased.done() and leased.exception() is None:
                    await self.run(lambda: give_back(queue, leased.result()))
                raise CallerGone
            return leased.result() if leased.done() else []
        finally:
            self.leave(queue, waiter)

    def join(self, queue: Queue, waiter: Waiter) -> None:
        """Stand in line for the queue until `leave`; `TooManyPolls` when too many do."""
        if self._open >= self._max_open:
            raise TooManyPolls(f"{self._open} long polls and streams are open, which is the limit")
        self._open += 1
        if self._stopping:
            waiter.take([])
            return
        line = self._line(queue)
        line.waiters.append(waiter)
        self._look_at(line)

    def leave(self, queue: Queue, waiter: Waiter) -> None:
        """Wait no longer."""
        self._open -= 1
        line = self._lines.get(_name(queue))
        if line is None:
            return
        if waiter in line.waiters:
            line.waiters.remove(waiter)
        if not line.waiters:
            self._close(line)

    def look(self, queue: Queue) -> None:
        """See whether the queue has something for those in its line; one of them may have room again."""
        if (line := self._lines.get(_name(queue))) is not None:
            self._look_at(line)

    async def stop(self) -> None:
        """Answer everyone with what there is: nothing."""
        self._stopping = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        lines = list(self._lines.values())
        for line in lines:
            waiters, line.waiters = line.waiters, []
            for waiter in waiters:
                waiter.take([])
            self._close(line)
        running = [task for task in (self._looking, *(line.receiving for line in lines)) if task is not None]
        await asyncio.gather(*running, return_exceptions=True)

    def close(self) -> None:
        """Finish what is being given back, and give the threads back."""
        self._threads.shutdown(wait=True)
        self._waiting_threads.shutdown(wait=False)

    def _line(self, queue: Queue) -> _Line:
        name = _name(queue)
        if name not in self._lines:
            plain = _plain(queue)
            line = self._lines[name] = _Line(queue, plain if isinstance(plain, Watchable) else None)
            if line.watchable is not None:
                loop = asyncio.get_running_loop()
                line.watching = line.watchable.watch(partial(self._ring, loop, line))
                line.watching.__enter__()
            self._sweep_in_time()
        return self._lines[name]

    def _close(self, line: _Line) -> None:
        if self._lines.get(_name(line.queue)) is line:
            del self._lines[_name(line.queue)]
        if line.watching is not None:
            line.watching.__exit__(None, None, None)
            line.watching = None
        line.schedule(None)

    def _ring(self, loop: asyncio.AbstractEventLoop, line: _Line, certain: bool) -> None:
        """Hear, on any thread, that the line's queue changed; the event loop is woken once for all of them."""
        if not certain and self._sweep_wanted:
            return
        with self._lock:
            if certain:
                self._rung.add(line)
            else:
                self._sweep_wanted = True
            too_early = not certain and time.monotonic() < self._sweep_not_before
            if self._look_wanted or too_early:
                return
            self._look_wanted = True
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._look_soon)

    def _look_at(self, line: _Line) -> None:
        if line.watchable is None:
            self._receive_soon(line)
            return
        with self._lock:
            self._rung.add(line)
            self._look_wanted = True
        self._look_soon()

    def _look_soon(self) -> None:
        if self._looking is None and not self._stopping:
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Ask every queue that rang, or all of them, when a receive would find something."""
        try:
            while questions := self._questions():
                for first in range(0, len(questions), _LOOK_AT_ONCE):
                    some = questions[first : first + _LOOK_AT_ONCE]
                    for line, failed, due in await self.run(partial(_ask, some)):
                        self._act(line, failed, due)
        finally:
            self._looking = None

    def _questions(self) -> Sequence[_Question]:
        """Which lines to look at, and who of those in line must be checked: everyone whose queue surely rang."""
        with self._lock:
            self._look_wanted = False
            rung, self._rung = self._rung, set()
            suspected: set[_Line] = set()
            if self._sweep_wanted and time.monotonic() >= self._sweep_not_before:
                self._sweep_wanted = False
                suspected = set(self._lines.values()) - rung
                self._sweep_not_before = time.monotonic() + len(self._lines) * _SWEEP_SECONDS_PER_QUEUE
        if self._stopping:
            return []
        return [(line, tuple(line.waiters)) for line in rung] + [(line, ()) for line in suspected]

    def _sweep_in_time(self) -> None:
        """Now and then look at every queue: a bell may have been lost, and a token runs out without one."""
        if self._sweep_timer is None and not self._stopping:
            self._sweep_timer = asyncio.get_running_loop().call_later(1.0, self._sweep_if_wanted)

    def _sweep_if_wanted(self) -> None:
        self._sweep_timer = None
        if not self._lines:
            return
        now = time.monotonic()
        with self._lock:
            if now >= self._checked_at + _CHECK_EVERY:
                self._checked_at = now
                self._rung.update(self._lines.values())
            wanted = bool(self._rung) or (self._sweep_wanted and now >= self._sweep_not_before)
        if wanted:
            self._look_soon()
        self._sweep_in_time()

    def _act(self, line: _Line, failed: Sequence[tuple[Waiter, Exception]], due: float | None) -> None:
        """Receive now, or when something is due."""
        for waiter, error in failed:
            if waiter in line.waiters:
                line.waiters.remove(waiter)
                waiter.fail(error)
        if due is None or not line.waiters or line.watchable is None:
            line.schedule(None)
        elif due <= 0 and not line.in_doubt:
            line.schedule(None)
            self._receive_soon(line)
        else:
            later = asyncio.get_running_loop().call_later(max(due, _DOUBT_SECONDS), self._receive_soon, line)
            line.schedule(later)

    def _receive_soon(self, line: _Line) -> None:
        line.in_doubt = False
        if line.receiving is None and not self._stopping:
            line.receiving = asyncio.create_task(self._receive(line))

    async def _receive(self, line: _Line) -> None:
        """Receive for the first in line that has room, until nobody has or nothing is left."""
        loop = asyncio.get_running_loop()
        watched = line.watchable is not None
        threads = self._threads if watched else self._waiting_threads
        try:
            while (first := line.next()) is not None and not self._stopping:
                wait = 0.0 if watched else max(0.0, min(_SLICE_SECONDS, first.until - loop.time()))
                try:
                    leased = await loop.run_in_executor(threads, _receive, line.queue, first, wait)
                except Exception as error:
                    if first in line.waiters:
                        line.waiters.remove(first)
                        first.fail(error)
                    continue
                if leased:
                    await self._hand_over(line, first, leased)
                elif watched:
                    line.in_doubt = True
                    self._look_at(line)
                    return
        finally:
            line.receiving = None

    async def _hand_over(self, line: _Line, meant_for: Waiter, leased: list[Delivery]) -> None:
        """Give what was leased to whom it was meant for, or to the next who asked for the same, or back."""
        for waiter in [meant_for, *line.waiters]:
            same = waiter.visibility == meant_for.visibility and waiter.room >= len(leased)
            if waiter in line.waiters and same:
                line.waiters.remove(waiter)
                if waiter.until == math.inf:
                    # A stream goes on; it stands behind the others from now on.
                    line.waiters.append(waiter)
                waiter.take(leased)
                return
        await self.run(lambda: give_back(line.queue, leased))


def give_back(queue: Queue, leased: Sequence[Delivery]) -> None:
    """Let others receive what nobody was there for, where possible without counting the receive."""
    plain = _plain(queue)
    if isinstance(plain, Watchable):
        plain.undo(leased)
    else:
        queue.release(leased)


def _plain(queue: Queue) -> Queue:
    """The queue without what only makes large bodies small."""
    return queue.inner if isinstance(queue, OverflowingQueue) else queue


def _name(queue: Queue) -> str:
    """Where callers stand in line: a lane and a queue of the same name are two."""
    return f"{type(queue).__name__} {queue.name}"


def _ask(questions: Sequence[_Question]) -> list[_Reply]:
    """When each queue has something to give, and whom of those in line something keeps from having it."""
    return [_reply(line, waiters) for line, waiters in questions]


def _reply(line: _Line, checked: Sequence[Waiter]) -> _Reply:
    failed: list[tuple[Waiter, Exception]] = []
    for waiter in checked:
        try:
            if waiter.check is not None:
                waiter.check()
        except PostroadError as error:
            failed.append((waiter, error))
    try:
        return line, failed, None if line.watchable is None else line.watchable.due_seconds()
    except PostroadError as error:
        return line, [(waiter, error) for waiter in tuple(line.waiters)], None


async def _left(leased: asyncio.Future[list[Delivery]], gone: Gone, wait: float) -> bool:
    """Wait until there is something, or the time is over, or the caller has gone, which is True."""
    leaving = asyncio.create_task(gone())
    try:
        waiting: set[asyncio.Future[Any]] = {leased, leaving}
        await asyncio.wait(waiting, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})
    return not leaving.cancelled()


def _receive(queue: Queue, waiter: Waiter, wait: float) -> list[Delivery]:
    return queue.receive(max_messages=waiter.room, wait=wait, visibility=waiter.visibility)


def _quietly(work: Callable[[], object]) -> None:
    with suppress(PostroadError):
        work()
