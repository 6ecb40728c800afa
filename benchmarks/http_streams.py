"""Rows of the HTTP server: what thousands of open streams cost it while nobody says anything."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from benchmarks.limits import limit
from benchmarks.running_up import FILE, cpu_seconds, running_up, status
from postroad.wiring import connect

_AT_ONCE = 50
_SETTLE_SECONDS = 2.0


def _stream(url: str, agent_id: str, token: str) -> socket.socket:
    """An open stream that has said that it is connected."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(
        f"GET /agents/{agent_id}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    received = b""
    while b": connected" not in received:
        more = connection.recv(4_096)
        received += more
        if not more or not received.startswith(b"HTTP/1.1 200"):
            raise WrongResult(received.decode(errors="replace"))
    return connection


def _part_of_a_core(pid: int, load: Load) -> float:
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(load.messages)
    return max(1e-6, (cpu_seconds(pid) - before) / (time.monotonic() - began))


def _bytes(pid: int, load: Load) -> float:
    return status(pid, "VmRSS") * 1024


def _threads(pid: int, load: Load) -> float:
    return status(pid, "Threads")


def _streaming(figure: Any) -> Open:
    """A side with one stream for each agent of a crowd, none of which has anything to say."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, load.crowd + 1_000)), hard))
        with connect(f"sqlite:///{directory}/{FILE}") as backend:
            agents = backend.agents().register_many(load.crowd)
        with running_up(directory) as up, ExitStack() as stack:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                streams = list(threads.map(lambda agent: _stream(up.url, agent.agent_id, agent.token), agents))
            for stream in streams:
                stack.enter_context(stream)
            time.sleep(_SETTLE_SECONDS)
            pid = up.server
            yield Opened(lambda: figure(pid, load))

    return opened


def _loads() -> Loads:
    """How many seconds to look, and how many streams are open; a comment goes to each every 15 seconds."""
    return Loads(
        full=Load(messages=30, crowd=5_000),
        quick=Load(messages=2, crowd=1_000),
        smallest=Load(messages=1, crowd=20),
    )


ROWS = [
    Row(
        name="http-idle-streams",
        unit="ratio",
        target=1.0,
        loads=_loads(),
        what="part of a core that the server takes for 5,000 idle streams",
        ours=Side(label="server", open=_streaming(_part_of_a_core)),
        peer=limit("limit of 3 %", 0.03),
    ),
    Row(
        name="http-idle-streams-memory",
        unit="bytes",
        target=1.0,
        loads=_loads(),
        what="memory of the server with 5,000 idle streams",
        ours=Side(label="server", open=_streaming(_bytes)),
        peer=limit("limit of 150 MB", 150e6),
    ),
    Row(
        name="http-idle-streams-threads",
        unit="ratio",
        target=1.0,
        loads=_loads(),
        what="threads of the server with 5,000 idle streams",
        ours=Side(label="server", open=_streaming(_threads)),
        peer=limit("limit of 20", 20.0),
    ),
]
