"""A session and its bus, inside one process."""

from __future__ import annotations

import pytest

from postroad.bus import InProcessEventBus
from postroad.sessions import Session


@pytest.fixture
def bus() -> InProcessEventBus:
    return InProcessEventBus()


@pytest.fixture
def session(bus: InProcessEventBus) -> Session:
    return Session(bus=bus)
