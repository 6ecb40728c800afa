"""Rows of what a person touches: HTTP against a bare litestar, and what an idle `postroad up` costs."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.processes import child, hear
from benchmarks.running_up import FILE, Client, RunningUp, cpu_seconds, memory_bytes, running_up
from postroad import OutgoingMessage, QueueSpec, connect

_TEN = 10
_CLIENTS = 50
_SETTLE_SECONDS = 5.0
_BODY = "x" * 100
_MESSAGES = json.dumps({"messages": [{"body": _BODY}] * _TEN}).encode()


def serve_bare(url: str, pipe: Connection) -> None:
    """A litestar application of two routes: one answers a constant, one returns what it was sent."""
    pipe.send("ready")
    import uvicorn
    from litestar import Litestar, get, post

    @get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": "0.1.0"}

    @post("/echo")
    async def echo(data: dict[str, Any]) -> dict[str, Any]:
        return data

    config = uvicorn.Config(Litestar([health, echo]), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])
        await asyncio.to_thread(pipe.recv)
        server.should_exit = True
        await serving

    asyncio.run(run())


@contextmanager
def _bare() -> Iterator[str]:
    """The address of a bare application in a process of its own."""
    with child(serve_bare, "") as pipe:
        yield f"http://127.0.0.1:{hear(pipe)}"


@contextmanager
def _sent_over_http(directory: Path, load: Load) -> Iterator[Opened]:
    with running_up(directory) as up:
        with closing(Client(up.url, up.headers)) as client:
            client.ask("PUT", "/queues/orders", b"{}")

        def run() -> float:
            # Servers close a connection on which nothing is asked during the other side's turn.
            with closing(Client(up.url, up.headers)) as client:
                began = time.perf_counter()
                for _ in range(load.messages // _TEN):
                    if client.ask("POST", "/queues/orders/messages", _MESSAGES).count(b'"ok":true') != _TEN:
                        raise WrongResult("a message was not sent")
                return load.messages / (time.perf_counter() - began)

        yield Opened(run)


@contextmanager
def _echoed_then_sent(directory: Path, load: Load) -> Iterator[Opened]:
    """The same bodies echoed by a bare application, and then the same messages sent, one after the other."""
    with _bare() as url, connect(f"sqlite:///{directory}/{FILE}") as backend:
        queue = backend.create_queue(QueueSpec("orders"))

        def run() -> float:
            with closing(Client(url)) as client:
                began = time.perf_counter()
                for _ in range(load.messages // _TEN):
                    client.ask("POST", "/echo", _MESSAGES)
                    if not all(sent.ok for sent in queue.send([OutgoingMessage(_BODY) for _ in range(_TEN)])):
                        raise WrongResult("a message was not sent")
                return load.messages / (time.perf_counter() - began)

        yield Opened(run)


def _asked(serving: Callable[[Path], Any], address: Callable[[Any], str]) -> Open:
    """A side whose `GET /health` many clients ask for at once."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with serving(directory) as served, ThreadPoolExecutor(_CLIENTS) as threads:

            def ask(client: Client) -> None:
                for _ in range(load.messages // _CLIENTS):
                    if b'"ok"' not in client.ask("GET", "/health"):
                        raise WrongResult("not well")

            def run() -> float:
                with ExitStack() as stack:
                    clients = [stack.enter_context(closing(Client(address(served)))) for _ in range(_CLIENTS)]
                    began = time.perf_counter()
                    list(threads.map(ask, clients))
                    return load.messages / (time.perf_counter() - began)

            yield Opened(run)

    return opened


@contextmanager
def _serving(directory: Path) -> Iterator[RunningUp]:
    with running_up(directory) as up:
        yield up


def _idle(figure: Callable[[list[int], Load], float]) -> Open:
    """A side with a `postroad up` that nobody uses."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with running_up(directory) as up:
            time.sleep(_SETTLE_SECONDS)
            yield Opened(lambda: figure(up.processes, load))

    return opened


def _part_of_a_core(pids: list[int], load: Load) -> float:
    before, began = cpu_seconds(*pids), time.monotonic()
    threading.Event().wait(load.messages)
    return max(1e-6, (cpu_seconds(*pids) - before) / (time.monotonic() - began))


def _moved(full: int, quick: int, smallest: int) -> Loads:
    return Loads(full=Load(messages=full), quick=Load(messages=quick), smallest=Load(messages=smallest))


ROWS = [
    Row(
        name="http-send",
        unit="per_second",
        target=0.7,
        loads=_moved(20_000, 5_000, 20),
        what="POST of 10 messages a request on one connection, against an echo by litestar and then the same send",
        ours=Side(label="POST /queues/{q}/messages", open=_sent_over_http),
        peer=Side(label="litestar echo, then send", open=_echoed_then_sent, package="litestar"),
    ),
    Row(
        name="http-health",
        unit="per_second",
        target=0.7,
        loads=_moved(20_000, 5_000, _CLIENTS),
        what="GET /health by 50 clients at once",
        ours=Side(label="GET /health", open=_asked(_serving, lambda up: str(up.url))),
        peer=Side(label="litestar", open=_asked(lambda _: _bare(), str), package="litestar"),
    ),
    Row(
        name="up-idle",
        unit="ratio",
        target=1.0,
        loads=_moved(30, 2, 1),
        what="part of a core that all processes of an idle `postroad up` take",
        ours=Side(label="postroad up", open=_idle(_part_of_a_core)),
        peer=limit("limit of 3 %", 0.03),
    ),
    Row(
        name="up-idle-memory",
        unit="bytes",
        target=1.0,
        loads=_moved(1, 1, 1),
        what="memory of all processes of an idle `postroad up`; what they share counts once",
        ours=Side(label="postroad up", open=_idle(lambda pids, load: memory_bytes(*pids))),
        peer=limit("limit of 250 MB", 250e6),
    ),
]
