"""The supervisor: starts the children, sends each the state of all, and stops them in order."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from typing import Any, Literal

from postroad.errors import Unavailable
from postroad.signals import was_held
from postroad.up.children import Child, Notice
from postroad.views import Part

_ASK_SECONDS = 2.0
_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared, not bound
_REQUEST = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def answers_ready(address: Any) -> bool:
    """Return whether `GET /ready` at the address answers 200."""
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            host = _REACHABLE.get(address[0], address[0])
            reader, writer = await asyncio.open_connection(host, address[1])
            try:
                writer.write(_REQUEST)
                return (await reader.readline()).split(b" ")[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


DRAIN_SECONDS = 8.0
CLOSE_SECONDS = 1.5
_POLL_SECONDS = 0.05


class Supervisor:
    """All children of one `postroad up`. The first of them is the server."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.children: Sequence[Child] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._phase: Literal["running", "stopping", "closing"] = "running"
        self._said_ready = False
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self.reason = ""

    def parts(self) -> tuple[Part, ...]:
        """Return the state of every part."""
        return tuple(part for child in self.children for part in child.parts())

    def announce(self) -> None:
        """Send every child the state of all parts."""
        for child in self.children:
            child.notify(Notice(parts=self.parts(), phase=self._phase, ready=self._said_ready))
        if self.children and self.children[0].failed:
            # Without a server it is better to refuse callers than to let them wait.
            self._listener.close()

    def obey_signals(self) -> None:
        """Stop on SIGTERM or Ctrl-C, and at once on a second Ctrl-C."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            loop.add_signal_handler(number, self._signalled, number)
            if was_held(before):
                self._signalled(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set() and number is signal.SIGINT:
            self._at_once.set()
        self.reason = self.reason or number.name
        self._stop.set()

    def start(self, children: Sequence[Child]) -> None:
        """Start the children and keep them running."""
        self.children = children
        self._tasks = [asyncio.create_task(child.keep_running()) for child in children]

    async def ready(self) -> bool:
        """Wait until `GET /ready` answers 200; return False if stopped before.

        Raises:
            PostroadError: A child cannot start.
        """
        address = self._listener.getsockname()
        while not self._stop.is_set():
            for child in self.children:
                if child.refused is not None:
                    raise child.refused
                for part in child.parts():
                    if part.state == "failed":
                        raise Unavailable(f"{part.name} does not start", remedy="The log above says why.")
            if await answers_ready(address):
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    def said_ready(self) -> None:
        """Tell the children that people know that everything is ready."""
        self._said_ready = True
        self.announce()

    async def signalled(self) -> None:
        """Wait until a signal asks to stop."""
        await self._stop.wait()

    async def stop(self) -> bool:
        """Stop the runners, then the server; return False if a second Ctrl-C cut it short."""
        stopping = asyncio.create_task(self._stop_in_order())
        hurried = asyncio.create_task(self._at_once.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        in_order = stopping.done()
        for child in self.children:
            child.kill()
        stopping.cancel()
        hurried.cancel()
        await asyncio.gather(stopping, hurried, *self._tasks, return_exceptions=True)
        return in_order

    async def _stop_in_order(self) -> None:
        server, *others = self._tasks
        self._enter("stopping")
        if others:
            await asyncio.wait(others, timeout=DRAIN_SECONDS)
        self._enter("closing")
        self._listener.close()
        await asyncio.wait([server], timeout=CLOSE_SECONDS)

    def _enter(self, phase: Literal["stopping", "closing"]) -> None:
        self._phase = phase
        self.announce()
