"""The supervisor: starts the children, tells each how all are, and ends them in order."""

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
_REQUEST = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def answers_ready(address: Any) -> bool:
    """Whether `GET /ready` at the address answers 200."""
    try:
        return await asyncio.wait_for(_ask(address), _ASK_SECONDS)
    except (OSError, TimeoutError):
        return False


async def _ask(address: Any) -> bool:
    reader, writer = await asyncio.open_connection(_reachable(address[0]), address[1])
    try:
        writer.write(_REQUEST)
        return (await reader.readline()).split(b" ")[1:2] == [b"200"]
    finally:
        writer.close()


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, not bound


DRAIN_SECONDS = 8.0
CLOSE_SECONDS = 1.5
_LOOK_AGAIN_SECONDS = 0.05


class Supervisor:
    """All children of one `postroad up`. The first of them is the server."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.children: Sequence[Child] = ()
        self._keeping: list[asyncio.Task[None]] = []
        self._phase: Literal["running", "stopping", "closing"] = "running"
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self.reason = ""

    def parts(self) -> tuple[Part, ...]:
        """How every part is."""
        return tuple(part for child in self.children for part in child.parts())

    def announce(self) -> None:
        """Tell every child how all are."""
        for child in self.children:
            child.tell(Notice(parts=self.parts(), phase=self._phase))
        if self.children and self.children[0].failed:
            # Without a server, callers are better refused than left waiting.
            self._listener.close()

    def obey_signals(self) -> None:
        """Stop on SIGTERM or Ctrl-C; on a second Ctrl-C at once."""
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
        self._keeping = [asyncio.create_task(child.keep_running()) for child in children]

    async def ready(self) -> bool:
        """Wait until `GET /ready` answers 200; False when told to stop before. Raises why it cannot be."""
        address = self._listener.getsockname()
        while not self._stop.is_set():
            self._raise_refusal()
            if await answers_ready(address):
                return True
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return False

    def _raise_refusal(self) -> None:
        for child in self.children:
            if child.refused is not None:
                raise child.refused
            if child.failed:
                raise Unavailable(f"{child.name} does not start", remedy="The log above says why.")

    async def told_to_stop(self) -> None:
        """Wait for a signal."""
        await self._stop.wait()

    async def stop(self) -> bool:
        """End the children in order: runners first, then the server. False when a second Ctrl-C cut it short."""
        stopping = asyncio.create_task(self._stop_in_order())
        hurried = asyncio.create_task(self._at_once.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        in_order = stopping.done()
        for child in self.children:
            child.kill()
        stopping.cancel()
        hurried.cancel()
        await asyncio.gather(stopping, hurried, *self._keeping, return_exceptions=True)
        return in_order

    async def _stop_in_order(self) -> None:
        server, *others = zip(self.children, self._keeping, strict=True)
        self._enter("stopping")
        await _gone([keeping for _, keeping in others], DRAIN_SECONDS)
        self._enter("closing")
        self._listener.close()
        await _gone([server[1]], CLOSE_SECONDS)

    def _enter(self, phase: Literal["stopping", "closing"]) -> None:
        self._phase = phase
        self.announce()


async def _gone(keeping: Sequence[asyncio.Task[None]], seconds: float) -> None:
    if keeping:
        await asyncio.wait(keeping, timeout=seconds)
