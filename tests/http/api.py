"""A real server on a free port, run on a thread of the test."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from postroad.clock import SYSTEM_CLOCK
from postroad.http.app import create_app, make_server
from postroad.http.context import Context
from postroad.settings import Settings
from postroad.wiring import Backend, connect

ADMIN = "pr_" + "a" * 40


@dataclass(frozen=True, slots=True)
class Api:
    """A running server and how to reach it."""

    client: httpx.Client
    context: Context
    host: str
    port: int
    stop: Callable[[], None]
    connections: Collection[object]
    """Those that the server knows to be open."""

    @property
    def backend(self) -> Backend:
        return self.context.backend

    def as_caller(self, token: str | None) -> httpx.Client:
        """A client with another token, or with none."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.client.base_url, headers=headers, timeout=30, verify=False)

    def token(self, scope: str, name: str | None = None) -> str:
        """A fresh token of this scope."""
        answer = self.client.post("/tokens", json={"name": name or f"t-{scope}", "scope": scope})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection((self.host, self.port), timeout=20)


Serve = Callable[..., Api]


@contextmanager
def serving(
    url: str, *, options: dict[str, Any] | None = None, send_buffer: int | None = None, **given: Any
) -> Iterator[Api]:
    """Serve the store at `url`, with the settings `given`, until the end of the block."""
    settings = replace(Settings(url=url, rate_limit=0), **given)
    backend = connect(url, clock=(options or {}).get("clock", SYSTEM_CLOCK))
    context = Context(settings, backend, admin=ADMIN, **(options or {}))
    # With its protocol named, so that asyncio turns Nagle's algorithm off.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    stop, end, connections = run(context, listener)
    port = listener.getsockname()[1]
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30, verify=False
    )
    try:
        yield Api(client=client, context=context, host="127.0.0.1", port=port, stop=stop, connections=connections)
    finally:
        client.close()
        end()
        backend.close()


def run(context: Context, listener: socket.socket) -> tuple[Callable[[], None], Callable[[], None], Collection[object]]:
    """Serve on a thread; what is returned begins to stop it, ends it, and holds its connections."""
    server = make_server(create_app(context))
    loops: list[asyncio.AbstractEventLoop] = []
    running = threading.Event()
    over = asyncio.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        running.set()
        await over.wait()
        # The server's own way to stop waits a while for callers that a test no longer has.
        serving.cancel()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        for one in server.servers:
            one.close()
        await asyncio.wait([serving])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    running.wait(120)

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(context.stop(), loops[0]).result(120)

    def end() -> None:
        stop()
        loops[0].call_soon_threadsafe(over.set)
        thread.join(120)
        context.close()
        assert not thread.is_alive()

    return stop, end, server.server_state.connections
