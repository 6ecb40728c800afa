"""The events of a bus for `async for`: each is acked when the next one is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroad.bus.dispatch import Released
from postroad.receiving import current_context

if TYPE_CHECKING:
    from postroad.bus.remote import RemoteEventBus

_Arrived = tuple[Any, "Future[bool]"]
"""An event, and the future of its end: True if the next one was asked for, False if it is to be released."""


class Iteration:
    """One `async for`: a handler that waits for the loop to finish with each event."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[_Arrived | None] = asyncio.Queue()
        self._over = False

    async def handle(self, event: object) -> None:
        """Hand the event to the loop and wait until it asks for the next one; raise Released if it does not."""
        done: Future[bool] = Future()
        # The receiver may cancel this call, and then nobody waits for the future; it has to stay usable.
        done.set_running_or_notify_cancel()
        self._loop.call_soon_threadsafe(self._arrive, event, done)
        context = current_context()
        # An event of this process was not received: there is nothing to ack, and its publisher does not wait.
        if context is not None and context.remote and not await asyncio.shield(asyncio.wrap_future(done)):
            raise Released

    def end(self) -> None:
        """Let the loop end after the event that it has now, and release the others."""
        # If the event loop is closed, there is nobody to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.release)

    async def next(self) -> _Arrived | None:
        """Return the next event and the future of its end; None if there will be no other."""
        return await self._arrived.get()

    def release(self) -> None:
        """Take no more events, and release those that nobody has asked for yet."""
        self._over = True
        while not self._arrived.empty():
            if (arrived := self._arrived.get_nowait()) is not None:
                arrived[1].set_result(False)
        self._arrived.put_nowait(None)

    def _arrive(self, event: object, done: Future[bool]) -> None:
        if self._over:
            done.set_result(False)
        else:
            self._arrived.put_nowait((event, done))


async def iterate(bus: RemoteEventBus, event_types: Sequence[type]) -> AsyncGenerator[Any, None]:
    """Yield the events of these types, and ack each one when the next is asked for."""
    iteration, done = Iteration(), None
    try:
        if bus.join(iteration, event_types):
            bus.start_receiver()
        while (arrived := await iteration.next()) is not None:
            event, done = arrived
            yield event
            done.set_result(True)
            done = None
    finally:
        # What is released now must not come to a receiver that is about to end: that would cost it an attempt.
        stop = bus.leave(iteration)
        if done is not None:
            # The loop was left by `break` or an exception.
            done.set_result(False)
        iteration.release()
        if stop is not None:
            # Nothing is awaited here, because the event loop may be about to end; a close of the bus waits.
            threading.Thread(target=stop, name="postroad-stop").start()
