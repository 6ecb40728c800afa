"""Fixtures for pytest, which finds them when Postroad is installed: a clock, two backends and faults.

Only the fixtures that a test uses load anything of Postroad.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from postroad.testing import FakeClock, Faults
    from postroad.wiring import Backend


@pytest.fixture
def postroad_clock() -> FakeClock:
    """Return a clock that stands still until the test moves it."""
    from postroad.testing import FakeClock

    return FakeClock()


@pytest.fixture
def postroad_backend(postroad_clock: FakeClock) -> Iterator[Backend]:
    """Return an empty backend in memory on the clock of the test, closed after the test."""
    from postroad.wiring import connect

    with connect("memory://", clock=postroad_clock) as backend:
        yield backend


@pytest.fixture
def postroad_sqlite(postroad_clock: FakeClock, tmp_path: Path) -> Iterator[Backend]:
    """Return an empty backend on a file in the test's temporary directory, closed after the test."""
    from urllib.parse import quote

    from postroad.wiring import connect

    with connect(f"sqlite:///{quote(str(tmp_path))}/postroad.db", clock=postroad_clock) as backend:
        yield backend


@pytest.fixture
def postroad_faults() -> Iterator[Faults]:
    """Return the faults that the backends, outboxes and inboxes of the test obey; by default there are none."""
    from postroad.testing import Faults

    faults = Faults()
    with faults.obeyed():
        yield faults
