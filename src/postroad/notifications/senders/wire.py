"""One HTTP/2 connection to a provider, shared by all threads.

The connection lives on a thread of its own, with an event loop: its HTTP/2 state must not be touched by several threads
at once.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Mapping
from typing import Final

import httpx

from postroad.errors import ConfigurationError
from postroad.notifications.senders.addresses import Provider
from postroad.notifications.senders.answers import THREAD_NAME, Answer, silence_libraries
from postroad.notifications.senders.connection import Connection, Refused, Unheard

_PLAIN: Final = (("accept-encoding", "identity"),)


class Wire:
    """Posts to one provider. What goes wrong on the way is an answer without a status."""

    def __init__(self, provider: Provider, *, timeout: float) -> None:
        self._provider = provider
        self._timeout = timeout
        self._starting = threading.Lock()
        self._line: _Line | None = None
        self._closed = False

    def post(self, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        """Post and wait for the whole answer, no longer than the timeout."""
        return self._running().run(path, headers, content)

    def close(self) -> None:
        """Close the connection; what is under way is answered without a status. Closing twice changes nothing."""
        with self._starting:
            self._closed = True
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def _running(self) -> _Line:
        with self._starting:
            if self._closed:
                raise ConfigurationError("this sender is closed", remedy="Send before closing it.")
            if self._line is None:
                self._line = _Line(self._provider, self._timeout)
                # A sender that nobody closed takes its thread along when it is forgotten.
                weakref.finalize(self, self._line.close)
            return self._line


class _Call:
    """One post: its thread waits for the answer, which the line tells once."""

    connection: Connection
    exchange: asyncio.Task[Answer]
    timer: asyncio.TimerHandle

    def __init__(self, url: httpx.URL, headers: Mapping[str, str], content: bytes) -> None:
        self.url, self.headers, self.content = url, [*_PLAIN, *headers.items()], content
        self.begun_at = 0.0
        self.is_late = False
        self.was_refused = False
        self._answer = _unheard("Closed")
        self._told = threading.Lock()
        self._told.acquire()

    def tell(self, answer: Answer) -> None:
        self._answer = answer
        self._told.release()

    def wait(self) -> Answer:
        self._told.acquire()
        return self._answer


class _Line:
    """An event loop in a thread, and the connection that lives in it."""

    def __init__(self, provider: Provider, timeout: float) -> None:
        self._provider = provider
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._connection = self._opened()
        self._given_up: set[Connection] = set()
        self._stopped = False
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        silence_libraries()
        self._thread.start()

    def run(self, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        call = _Call(httpx.URL(self._provider.base_url + path), headers, content)
        # Under the guard, so that nothing is handed to a loop that has been told to stop and would never answer.
        with self._guard:
            if self._stopped:
                return _unheard("Closed")
            self._loop.call_soon_threadsafe(self._begin, call)
        return call.wait()

    def close(self) -> None:
        with self._guard:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _begin(self, call: _Call) -> None:
        call.begun_at = self._loop.time()
        call.timer = self._loop.call_later(self._timeout, self._is_late, call)
        self._send(call)

    def _send(self, call: _Call) -> None:
        if not self._connection.is_usable(self._loop.time()):
            self._give_up(self._connection)
        call.connection = self._connection
        call.exchange = self._loop.create_task(call.connection.post(call.url, call.headers, call.content))
        call.exchange.add_done_callback(lambda done: self._ended(call, done))

    def _is_late(self, call: _Call) -> None:
        call.is_late = True
        call.exchange.cancel()

    def _ended(self, call: _Call, done: asyncio.Task[Answer]) -> None:
        answer = self._answer(call, done)
        if answer is None:
            self._send(call)
            return
        call.timer.cancel()
        call.tell(answer)

    def _answer(self, call: _Call, done: asyncio.Task[Answer]) -> Answer | None:
        """What is to be told; None when the provider never began with it and is asked once more."""
        try:
            return done.result()
        except asyncio.CancelledError:
            why = "Closed" if self._stopped else "Timeout"
        except Refused:
            if not call.was_refused:
                call.was_refused = True
                return None
            why = "GoAway"
        except Unheard as error:
            why = str(error)
        except Exception as error:
            why = type(error).__name__
            self._give_up(call.connection)
        if call.is_late:
            # The connection may be dead; what else is under way on it has its own time.
            self._give_up(call.connection)
        return _unheard(why, self._lost_with(call))

    def _lost_with(self, call: _Call) -> int | None:
        """The connection that was lost with the call; a timeout is a loss when nothing else was heard meanwhile."""
        connection = call.connection
        is_silent = call.is_late and connection.heard_at < call.begun_at
        return connection.number if connection.is_established and (connection.is_lost or is_silent) else None

    def _give_up(self, connection: Connection) -> None:
        """Use another connection from now on, and close this one when nothing can be under way on it any more."""
        if connection is self._connection:
            self._connection = self._opened()
            self._given_up.add(connection)
            self._loop.call_later(self._timeout, self._forget, connection)

    def _forget(self, connection: Connection) -> None:
        task = self._loop.create_task(connection.close())
        task.add_done_callback(lambda done: self._given_up.discard(connection))

    def _opened(self) -> Connection:
        return Connection(self._provider, next(self._numbers), self._give_up)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        opened = {self._connection, *self._given_up}
        await asyncio.gather(*(connection.close() for connection in opened), return_exceptions=True)


def _unheard(why: str, lost_connection: int | None = None) -> Answer:
    return Answer(None, {}, b"", why, lost_connection)
