"""Dispatchers that are killed on the embedded engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.fault_rules import DispatcherFaultRules
from tests.jobs.floor import Floor

import postroad


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def floor(url: str) -> Iterator[Floor]:
    with postroad.connect(url) as backend:
        yield Floor(backend)


class TestDispatchersThatDie(DispatcherFaultRules):
    pass
