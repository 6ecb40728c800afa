from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import Bench, working

import postroad
from postroad import Backend


@pytest.fixture(autouse=True)
def _an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_STAGE", raising=False)
    monkeypatch.delenv("EVENT_BUS_NAME", raising=False)


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Every store of a single process."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"
    with postroad.connect(url) as opened:
        yield opened


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def steady(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Every store, with one worker for all tests of a file that need nothing else."""
    path = tmp_path_factory.mktemp("steady") / "tasks.db"
    with postroad.connect("memory://" if request.param == "memory" else f"sqlite:///{path}") as opened:
        with working(Bench(opened)) as bench:
            yield bench


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Backend]:
    """A file, for tests with several processes."""
    with postroad.connect(f"sqlite:///{tmp_path / 'tasks.db'}") as opened:
        yield opened


@pytest.fixture
def bench(backend: Backend) -> Bench:
    """A producer and workers on the backend."""
    return Bench(backend)


@pytest.fixture
def run(bench: Bench) -> Callable[..., Any]:
    """Submit one task, let a worker run it to its end, and return its state."""
    return bench.run_one
