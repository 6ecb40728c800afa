"""Servers for the tests of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.http.api import Api, Serve, serving
from tests.http.village import Village


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start servers with the settings that a test needs; all are stopped afterwards."""
    # A server without a data file keeps its secret in the working directory.
    monkeypatch.chdir(tmp_path)
    with ExitStack() as servers:

        def start(url: str = f"sqlite:///{tmp_path}/data.db", **given: Any) -> Api:
            return servers.enter_context(serving(url, **given))

        yield start


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
