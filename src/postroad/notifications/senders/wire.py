"""One HTTP/2 connection to a provider, shared by all threads.

The connection lives on a thread of its own: httpx multiplexes requests of one event loop, but its HTTP/2 state must
not be touched by several threads at once.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from typing import Final

import httpx

from postroad.errors import ConfigurationError
from postroad.notifications.senders.addresses import Provider
from postroad.notifications.senders.answers import Answer
from postroad.notifications.senders.silence import THREAD_NAME, silence_libraries

# Below the 350 seconds after which the network forgets idle connections without a word.
_IDLE_SECONDS: Final = 300.0
_MOST_BYTES: Final = 65_536


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


class _Line:
    """An event loop in a thread, and the client that lives in it."""

    def __init__(self, provider: Provider, timeout: float) -> None:
        self._provider = provider
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        self._client = self._opened()
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._given_up: set[httpx.AsyncClient] = set()
        self._stopped = False
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        silence_libraries()
        self._thread.start()

    def run(self, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        # Under the guard, so that nothing is handed to a loop that has been told to stop and would never answer.
        with self._guard:
            if self._stopped:
                return _unheard("Closed")
            done: Future[Answer] = asyncio.run_coroutine_threadsafe(self._post(path, headers, content), self._loop)
        try:
            return done.result()
        except CancelledError:
            return _unheard("Closed")

    def close(self) -> None:
        with self._guard:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def _post(self, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        client, under_way = self._client, self._under_way
        exchange = self._loop.create_task(_exchange(client, path, headers, content))
        under_way.add(exchange)
        try:
            async with asyncio.timeout(self._timeout):
                return await exchange
        except TimeoutError:
            # The connection may be dead; what else is under way on it has its own time.
            self._give_up(client)
            return _unheard("Timeout")
        except asyncio.CancelledError:
            return _unheard("Closed" if self._stopped else "ConnectionLost")
        except Exception as error:
            if not isinstance(error, httpx.HTTPError) or isinstance(error, httpx.LocalProtocolError):
                # The provider sent what is no HTTP: nobody hears anything on this connection any more.
                self._give_up(client)
                for other in under_way:
                    other.cancel()
            return _unheard(type(error).__name__)
        finally:
            under_way.discard(exchange)

    def _give_up(self, client: httpx.AsyncClient) -> None:
        """Use another connection from now on, and close this one when nothing can be under way on it any more."""
        if client is self._client:
            self._client, self._under_way = self._opened(), set()
            self._given_up.add(client)
            self._loop.call_later(self._timeout, self._forget, client)

    def _forget(self, client: httpx.AsyncClient) -> None:
        task = self._loop.create_task(client.aclose())
        task.add_done_callback(lambda done: self._given_up.discard(client))

    def _opened(self) -> httpx.AsyncClient:
        return self._provider.client(
            timeout=httpx.Timeout(None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
        )

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
        await asyncio.gather(*(client.aclose() for client in {self._client, *self._given_up}), return_exceptions=True)


async def _exchange(client: httpx.AsyncClient, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
    async with client.stream("POST", path, headers=headers, content=content) as response:
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MOST_BYTES:
                break
        return Answer(response.status_code, response.headers, body[:_MOST_BYTES])


def _unheard(why: str) -> Answer:
    return Answer(None, {}, b"", why)
