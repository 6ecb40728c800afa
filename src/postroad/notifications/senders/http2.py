"""One HTTP/2 connection to a provider, shared by all threads.

The connection belongs to a thread of its own with an event loop, since only one thread at a time may use its state.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Final

import httpx

from postroad.errors import ConfigurationError
from postroad.notifications.senders.addresses import Provider
from postroad.notifications.senders.answers import THREAD_NAME, Answer, silence_libraries
from postroad.notifications.senders.connection import Connection, Header, NoAnswer, Refused

_PLAIN: Final = (("accept-encoding", "identity"),)


class ProviderClient:
    """Posts to one provider. If no answer comes, it returns an answer without a status."""

    def __init__(self, provider: Provider, *, timeout: float) -> None:
        self._provider = provider
        self._timeout = timeout
        self._starting = threading.Lock()
        self._running: _Loop | None = None
        self._closed = False

    def post(self, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        """Post, and wait for the whole answer no longer than the timeout."""
        with self._starting:
            if self._closed:
                raise ConfigurationError("this sender is closed", remedy="Send before closing it.")
            if self._running is None:
                self._running = _Loop(self._provider, self._timeout)
                # The thread of a sender that was never closed ends when the sender is garbage collected.
                weakref.finalize(self, self._running.close)
            running = self._running
        return running.run(path, headers, content)

    def close(self) -> None:
        """Close the connection; posts in progress get an answer without a status. Safe to repeat."""
        with self._starting:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()


class _Loop:
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
        url, sent = httpx.URL(self._provider.base_url + path), [*_PLAIN, *headers.items()]
        # Under the guard, so that no post is given to a loop that has been stopped and would never answer.
        with self._guard:
            if self._stopped:
                return _unanswered("Closed")
            answer = asyncio.run_coroutine_threadsafe(self._post(url, sent, content), self._loop)
        try:
            return answer.result()
        except CancelledError:
            return _unanswered("Closed")

    def close(self) -> None:
        with self._guard:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def _post(self, url: httpx.URL, headers: Sequence[Header], content: bytes) -> Answer:
        """Return the answer; a post with which the provider never began is sent once more, within the same time."""
        begun_at, connection, is_late = self._loop.time(), self._usable(), False
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return await connection.post(url, headers, content)
                except Refused:
                    connection = self._usable()
                    return await connection.post(url, headers, content)
        except Refused:
            why = "GoAway"
        except NoAnswer as error:
            why = str(error)
        except TimeoutError:
            # The connection may be dead; other posts on it have their own timeouts.
            why, is_late = "Timeout", True
            self._give_up(connection)
        except Exception as error:
            why = type(error).__name__
            self._give_up(connection)
        # After a timeout the connection counts as lost if nothing else was received on it.
        is_silent = is_late and connection.heard_at < begun_at
        is_lost = connection.is_established and (connection.is_lost or is_silent)
        return _unanswered(why, connection.number if is_lost else None)

    def _usable(self) -> Connection:
        if not self._connection.is_usable(self._loop.time()):
            self._give_up(self._connection)
        return self._connection

    def _give_up(self, connection: Connection) -> None:
        """Use another connection from now on, and close this one when no post can be in progress on it."""
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


def _unanswered(why: str, lost_connection: int | None = None) -> Answer:
    return Answer(None, {}, b"", why, lost_connection)
