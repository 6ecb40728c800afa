"""Servers for the tests of the HTTP API."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.api import ADMIN, Api, Serve, run
from tests.http.village import Village

from postroad.clock import SYSTEM_CLOCK
from postroad.http.context import make_context
from postroad.settings import Settings
from postroad.wiring import connect


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start servers with the settings that a test needs; all are stopped afterwards."""
    # A server without a data file keeps its secret in the working directory.
    monkeypatch.chdir(tmp_path)
    stops: list[Callable[[], None]] = []

    def start(
        url: str = f"sqlite:///{tmp_path}/data.db",
        *,
        options: dict[str, Any] | None = None,
        send_buffer: int | None = None,
        **given: Any,
    ) -> Api:
        settings = replace(Settings(url=url, rate_limit=0), **given)
        backend = connect(url, clock=(options or {}).get("clock", SYSTEM_CLOCK))
        context = make_context(settings, backend, admin=ADMIN, **(options or {}))
        # With its protocol named, so that asyncio turns Nagle's algorithm off.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        stop, end, connections = run(context, listener)
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
            headers={"Authorization": f"Bearer {ADMIN}"},
            timeout=30,
            verify=False,
        )
        stops.extend([backend.close, end, client.close])
        port = listener.getsockname()[1]
        return Api(client=client, context=context, host="127.0.0.1", port=port, stop=stop, connections=connections)

    yield start
    for stop in reversed(stops):
        stop()


@pytest.fixture
def api(serve: Serve) -> Api:
    """A server on a new file."""
    return serve()


@pytest.fixture
def village(api: Api) -> Iterator[Village]:
    village = Village(api)
    yield village
    for client in village.clients.values():
        client.close()
