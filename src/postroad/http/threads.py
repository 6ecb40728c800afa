"""Threads for work that would block the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
Work = Callable[[], None] | None
"""What a thread does next; None ends it."""


class Threads:
    """Runs work of one event loop on at most `most` threads, each started when it is first needed.

    An executor does the same, but makes a second future with locks of its own for each piece of work, and its threads
    share a queue, which wakes a second thread for each piece of work. Every request that reads or writes the store
    comes through here, and spends a third less on it this way.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most: Final = most
        self._name: Final = name
        self._lock: Final = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []
        """The queues of the threads that wait; the one that worked last is the next to work."""
        self._left: deque[Work] = deque()
        """What no thread has begun, because all of them work or have just finished."""
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run the work on a thread, with a copy of the caller's context variables, and return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        context = copy_context()
        self._unfinished += 1
        try:
            if self._unfinished > len(self._threads) < self._most:
                self._start()
            self._give(lambda: context.run(_finish, work, loop, done))
            return await done
        finally:
            self._unfinished -= 1

    def shutdown(self) -> None:
        """Finish what has begun, and wait for the threads."""
        for _ in self._threads:
            self._give(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._idle.clear()

    def _give(self, work: Work) -> None:
        with self._lock:
            if not self._idle:
                self._left.append(work)
                return
            own = self._idle.pop()
        own.put(work)

    def _start(self) -> None:
        own: SimpleQueue[Work] = SimpleQueue()
        thread = threading.Thread(
            target=self._serve, args=(own,), name=f"{self._name}-{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The machine has too many: those that run do the work.
            if not self._threads:
                raise
            return
        self._threads.append(thread)
        self._idle.append(own)

    def _serve(self, own: SimpleQueue[Work]) -> None:
        while (work := own.get()) is not None:
            work()
            # While it waits for more, a thread must not keep what the last work referred to.
            del work
            with self._lock:
                if self._left:
                    own.put(self._left.popleft())
                else:
                    self._idle.append(own)


def _finish(work: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any]) -> None:
    """Run the work, and tell the event loop what became of it."""
    try:
        tell = partial(_tell, done, work(), None)
    except BaseException as error:
        tell = partial(_tell, done, None, error)
    # An event loop that was closed meanwhile has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(tell)


def _tell(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # Who waited was cancelled.
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
