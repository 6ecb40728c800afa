"""Long polls and streams wait in line for their queue, and none of them needs a thread.

A queue that can be watched reports its changes. Then one check on a thread finds the queues that have messages, and
only these are received from. For a queue that cannot be watched, one thread waits in it for everyone in its line.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from litestar.types import Receive

from postroad.errors import PostroadError, TooManyPolls
from postroad.queues import AckResult, Delivery, OverflowingQueue, Queue, Watchable

MAX_OPEN: Final = 5_000
_THREADS: Final = 3
_MAX_WAITING_THREADS: Final = 1_000
# A thread that waits in a queue checks this often whether somebody still waits and the server still runs.
_SLICE_SECONDS: Final = 2.0
# The pause after a check that found messages and a receive that did not.
_DOUBT_SECONDS: Final = 0.05
# Another process may have committed something without a wake-up. To check a queue takes about 20 us, so the more
# queues there are the less often all of them are checked.
_SWEEP_SECONDS_PER_QUEUE: Final = 0.004
# A token expires without a wake-up.
_CHECK_EVERY: Final = 60.0
_CHECK_AT_ONCE: Final = 500
T = TypeVar("T")

Gone = Callable[[], Coroutine[None, None, None]]
"""Returns when the caller has closed the connection."""


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """A poll or stream that waits in line for a queue.

    `room` is how many messages it accepts now. On the event loop `take` is called with the messages, and `fail` with
    the error that ends the waiting. `check` runs on a thread and raises if the caller is no longer allowed to receive.
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
    # There may be thousands of lines with few waiters each: a list is smaller than a deque.
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


_Check = tuple[_Line, Sequence[Waiter]]
_Result = tuple[_Line, Sequence[tuple[Waiter, Exception]], float | None]


class CallerGone(Exception):
    """The caller has closed the connection; what was leased for it is released."""


class Polls:
    """All long polls and streams. Waiting blocks neither the event loop nor the threads of other routes."""

    def __init__(self, *, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open = 0
        self._stopping = False
        self._others: set[asyncio.Future[Any]] = set()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="poll")
        self._waiting_threads = ThreadPoolExecutor(_MAX_WAITING_THREADS, thread_name_prefix="wait")
        self._lines: dict[str, _Line] = {}
        # Other threads write these; the event loop reads them when it checks.
        self._lock = threading.Lock()
        self._changed: set[_Line] = set()
        self._sweep_wanted = False
        self._check_wanted = False
        self._checking: asyncio.Task[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_not_before = 0.0
        self._checked_at = time.monotonic()

    @property
    def open(self) -> int:
        """How many polls and streams wait."""
        return self._open

    async def wait_for(self, coming: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """Wait for something else than messages; return None if it does not come in time, or if the server stops.

        Raises:
            TooManyPolls: Too many wait.
        """
        waiting = asyncio.ensure_future(coming)
        self._others.add(waiting)
        try:
            with self.counted():
                if not self._stopping:
                    await asyncio.wait({waiting}, timeout=seconds)
                return waiting.result() if waiting.done() and not waiting.cancelled() else None
        finally:
            waiting.cancel()
            self._others.discard(waiting)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a stream that waits for something else than messages; raise `TooManyPolls` if too many wait."""
        self._count()
        try:
            yield
        finally:
            self._open -= 1

    def _count(self) -> None:
        if self._open >= self._max_open:
            raise TooManyPolls(f"{self._open} long polls and streams are open, which is the limit")
        self._open += 1

    async def run(self, work: Callable[[], T]) -> T:
        """Run storage work of those who wait on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def run_quietly(self, work: Callable[[], object]) -> None:
        """Run work on a thread and ignore its errors: leases that are not released expire."""

        def quietly() -> None:
            with suppress(PostroadError):
                work()

        self._threads.submit(quietly)

    async def receive(
        self, queue: Queue, *, max_messages: int, wait: float, visibility: float | None, gone: Gone
    ) -> list[Delivery]:
        """Lease messages, waiting up to `wait` seconds for the first; pass them to `unless_gone`."""
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
            if await _left(leased, gone, wait) and not leased.done():
                raise CallerGone
            return leased.result() if leased.done() else []
        finally:
            self.leave(queue, waiter)

    async def unless_gone(self, queue: Queue, leased: list[Delivery], gone: Gone) -> list[Delivery]:
        """Return what was leased; if the caller has gone, give it back and raise `CallerGone`."""
        now = asyncio.get_running_loop().create_future()
        now.set_result(leased)
        if leased and await _left(now, gone, 0.0):
            await self.run(lambda: give_back(queue, leased))
            raise CallerGone
        return leased

    def join(self, queue: Queue, waiter: Waiter) -> None:
        """Wait in line for the queue until `leave`; raise `TooManyPolls` if too many wait."""
        self._count()
        if self._stopping:
            waiter.take([])
            return
        line = self._line(queue)
        line.waiters.append(waiter)
        self._check_line(line)

    def leave(self, queue: Queue, waiter: Waiter) -> None:
        """Leave the line."""
        self._open -= 1
        line = self._lines.get(_name(queue))
        if line is None:
            return
        if waiter in line.waiters:
            line.waiters.remove(waiter)
        if not line.waiters and line.receiving is None:
            self._close(line)

    def look(self, queue: Queue) -> None:
        """Check whether the queue has messages for those in its line; one of them may have room again."""
        if (line := self._lines.get(_name(queue))) is not None:
            self._check_line(line)

    async def stop(self) -> None:
        """Answer everyone who waits, with nothing."""
        self._stopping = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for waiting in self._others:
            waiting.cancel()
        lines = list(self._lines.values())
        for line in lines:
            waiters, line.waiters = line.waiters, []
            for waiter in waiters:
                waiter.take([])
            self._close(line)
        running = [task for task in (self._checking, *(line.receiving for line in lines)) if task is not None]
        await asyncio.gather(*running, return_exceptions=True)

    def close(self) -> None:
        """Finish releasing, and stop the threads."""
        self._threads.shutdown(wait=True)
        self._waiting_threads.shutdown(wait=False)

    def _line(self, queue: Queue) -> _Line:
        name = _name(queue)
        if name not in self._lines:
            plain = _plain(queue)
            line = self._lines[name] = _Line(queue, plain if isinstance(plain, Watchable) else None)
            if line.watchable is not None:
                loop = asyncio.get_running_loop()
                line.watching = line.watchable.watch(partial(self._on_change, loop, line))
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

    def _on_change(self, loop: asyncio.AbstractEventLoop, line: _Line, certain: bool) -> None:
        """Note, on any thread, that the line's queue has changed; wake the event loop once for all changes."""
        if not certain and self._sweep_wanted:
            return
        with self._lock:
            if certain:
                self._changed.add(line)
            else:
                self._sweep_wanted = True
            too_early = not certain and time.monotonic() < self._sweep_not_before
            if self._check_wanted or too_early:
                return
            self._check_wanted = True
        # On a closed loop nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._check_soon)

    def _check_line(self, line: _Line) -> None:
        if line.watchable is None:
            self._receive_soon(line)
            return
        with self._lock:
            self._changed.add(line)
            self._check_wanted = True
        self._check_soon()

    def _check_soon(self) -> None:
        if self._checking is None and not self._stopping:
            self._checking = asyncio.create_task(self._check_all())

    async def _check_all(self) -> None:
        """Check when the queues that changed, or all of them, will have messages."""
        try:
            while checks := self._due_checks():
                for first in range(0, len(checks), _CHECK_AT_ONCE):
                    some = checks[first : first + _CHECK_AT_ONCE]
                    for result in await self.run(partial(_run_checks, some)):
                        self._act(*result)
        finally:
            self._checking = None

    def _due_checks(self) -> Sequence[_Check]:
        """Return the lines to check, with the waiters to check: those whose queue has certainly changed."""
        with self._lock:
            self._check_wanted = False
            changed, self._changed = self._changed, set()
            suspected: set[_Line] = set()
            if self._sweep_wanted and time.monotonic() >= self._sweep_not_before:
                self._sweep_wanted = False
                suspected = set(self._lines.values()) - changed
                self._sweep_not_before = time.monotonic() + len(self._lines) * _SWEEP_SECONDS_PER_QUEUE
        if self._stopping:
            return []
        return [(line, tuple(line.waiters)) for line in changed] + [(line, ()) for line in suspected]

    def _sweep_in_time(self) -> None:
        """Check every queue now and then: a wake-up may be lost, and a token expires without one."""
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
                self._changed.update(self._lines.values())
            wanted = bool(self._changed) or (self._sweep_wanted and now >= self._sweep_not_before)
        if wanted:
            self._check_soon()
        self._sweep_in_time()

    def _act(self, line: _Line, failed: Sequence[tuple[Waiter, Exception]], due: float | None) -> None:
        """Receive now, or when a message is due."""
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
        """Receive for the first in line that has room, until nobody has room or nothing is left."""
        loop = asyncio.get_running_loop()
        watched = line.watchable is not None
        threads = self._threads if watched else self._waiting_threads
        try:
            while (first := line.next()) is not None and not self._stopping:
                wait = 0.0 if watched else max(0.0, min(_SLICE_SECONDS, first.until - loop.time()))
                try:
                    receive = partial(line.queue.receive, max_messages=first.room, visibility=first.visibility)
                    leased = await loop.run_in_executor(threads, partial(receive, wait=wait))
                except Exception as error:
                    if first in line.waiters:
                        line.waiters.remove(first)
                        first.fail(error)
                    continue
                if leased:
                    await self._hand_over(line, first, leased)
                elif watched:
                    line.in_doubt = True
                    self._check_line(line)
                    return
        finally:
            line.receiving = None
            # A line stays while it receives, so that `stop` waits until what nobody takes is given back.
            if not line.waiters:
                self._close(line)

    async def _hand_over(self, line: _Line, meant_for: Waiter, leased: list[Delivery]) -> None:
        """Pass messages to the waiter they were leased for, or to the next who asked for the same, or release them."""
        for waiter in [meant_for, *line.waiters]:
            same = waiter.visibility == meant_for.visibility and waiter.room >= len(leased)
            if waiter in line.waiters and same:
                line.waiters.remove(waiter)
                if waiter.until == math.inf:
                    # A stream continues, at the end of the line.
                    line.waiters.append(waiter)
                waiter.take(leased)
                return
        await self.run(lambda: give_back(line.queue, leased))


def give_back(queue: Queue, leased: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
    """Release messages that nobody has handled, if possible without counting the receive."""
    plain = _plain(queue)
    return plain.undo(leased, after=after) if isinstance(plain, Watchable) else queue.release(leased, after=after)


def _plain(queue: Queue) -> Queue:
    """Return the queue below the one that stores large bodies as blobs."""
    return queue.inner if isinstance(queue, OverflowingQueue) else queue


def _name(queue: Queue) -> str:
    """Return the name of the line; an agent's queue and a queue of the same name differ."""
    return f"{type(queue).__name__} {queue.name}"


def _run_checks(checks: Sequence[_Check]) -> list[_Result]:
    return [_run_check(line, waiters) for line, waiters in checks]


def _run_check(line: _Line, checked: Sequence[Waiter]) -> _Result:
    """Return which waiters may no longer receive, and in how many seconds the queue has a message."""
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


async def gone(receive: Receive) -> None:
    """Return when the caller has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _left(leased: asyncio.Future[list[Delivery]], gone: Gone, wait: float) -> bool:
    """Wait for messages, the timeout or the end of the connection; return True in the last case."""
    leaving = asyncio.create_task(gone())
    try:
        waiting: set[asyncio.Future[Any]] = {leased, leaving}
        await asyncio.wait(waiting, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})
    return not leaving.cancelled()
