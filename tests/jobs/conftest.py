from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.floor import Floor

import postroad
from postroad import Backend


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with postroad.connect(url) as opened:
        yield opened


@pytest.fixture
def floor(backend: Backend) -> Floor:
    """Jobs whose tasks the test ends by hand."""
    return Floor(backend)
