"""One HTTP/2 connection to a provider, shared by all threads.

The connection lives on a thread of its own: httpx multiplexes requests of one event loop, but its HTTP/2 state must
not be touched by several threads at once.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping
from typing import Final

import httpx

from postroad.errors import ConfigurationError
from postroad.notifications.senders.addresses import Provider
from postroad.notifications.senders.answers import Answer
from postroad.notifications.senders.silence import THREAD_NAME, silence_libraries

# Below the 350 seconds after which the network forgets idle connections without a word.
_IDLE_SECONDS: Final = 300.0
_MOST_BYTES: Final = 65_536
_PLAIN: Final = {"accept-encoding": "identity"}


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

    __slots__ = ("_answer", "_told", "is_late")

    def __init__(self) -> None:
        self.is_late = False
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
        self._transport = self._opened()
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._given_up: set[httpx.AsyncHTTPTransport] = set()
        self._stopped = False
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        silence_libraries()
        self._thread.start()

    def run(self, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        request = httpx.Request("POST", self._provider.base_url + path, headers={**_PLAIN, **headers}, content=content)
        call = _Call()
        # Under the guard, so that nothing is handed to a loop that has been told to stop and would never answer.
        with self._guard:
            if self._stopped:
                return _unheard("Closed")
            self._loop.call_soon_threadsafe(self._begin, call, request)
        return call.wait()

    def close(self) -> None:
        with self._guard:
            if self._stopped:
                return
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _begin(self, call: _Call, request: httpx.Request) -> None:
        transport, under_way = self._transport, self._under_way
        exchange = self._loop.create_task(_exchange(transport, request))
        under_way.add(exchange)

        def late() -> None:
            call.is_late = True
            exchange.cancel()

        def ended(done: asyncio.Task[Answer]) -> None:
            timer.cancel()
            under_way.discard(done)
            answer = self._answer(done, transport, under_way)
            if call.is_late and answer.status is None:
                # The connection may be dead; what else is under way on it has its own time.
                self._give_up(transport)
                answer = _unheard("Timeout")
            call.tell(answer)

        timer = self._loop.call_later(self._timeout, late)
        exchange.add_done_callback(ended)

    def _answer(
        self, done: asyncio.Task[Answer], transport: httpx.AsyncHTTPTransport, others: set[asyncio.Task[Answer]]
    ) -> Answer:
        try:
            return done.result()
        except asyncio.CancelledError:
            return _unheard("Closed" if self._stopped else "ConnectionLost")
        except Exception as error:
            if not isinstance(error, httpx.HTTPError) or isinstance(error, httpx.LocalProtocolError):
                # The provider sent what is no HTTP: nobody hears anything on this connection any more.
                self._give_up(transport)
                for other in others:
                    other.cancel()
            return _unheard(type(error).__name__)

    def _give_up(self, transport: httpx.AsyncHTTPTransport) -> None:
        """Use another connection from now on, and close this one when nothing can be under way on it any more."""
        if transport is self._transport:
            self._transport, self._under_way = self._opened(), set()
            self._given_up.add(transport)
            self._loop.call_later(self._timeout, self._forget, transport)

    def _forget(self, transport: httpx.AsyncHTTPTransport) -> None:
        task = self._loop.create_task(transport.aclose())
        task.add_done_callback(lambda done: self._given_up.discard(transport))

    def _opened(self) -> httpx.AsyncHTTPTransport:
        return self._provider.transport(limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS))

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
        opened = {self._transport, *self._given_up}
        await asyncio.gather(*(transport.aclose() for transport in opened), return_exceptions=True)


async def _exchange(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> Answer:
    response = await transport.handle_async_request(request)
    try:
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MOST_BYTES:
                break
        return Answer(response.status_code, response.headers, body[:_MOST_BYTES])
    finally:
        await response.aclose()


def _unheard(why: str) -> Answer:
    return Answer(None, {}, b"", why)
