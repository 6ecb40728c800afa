"""Starting a main loop or its client: what was opened is closed again when the start fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.sessions.reviews import Reviewer, ReviewLoop

import postroad
from postroad import Backend
from postroad.bus import TopicEventBus
from postroad.errors import Unavailable
from postroad.sessions import MainLoopClient, MainLoopRequest


class Unreachable:
    """A backend whose buses can be made and not started."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.made: list[TopicEventBus] = []
        self.topic = backend.topic

    def bus(self, *arguments: Any, **options: Any) -> Any:
        bus = self._backend.bus(*arguments, **options)
        bus.start_receiver = self._refuse  # type: ignore[method-assign]  # a store that goes away between two calls
        self.made.append(bus)
        return bus

    def _refuse(self) -> None:
        raise Unavailable("no network")


@pytest.fixture
def unreachable() -> Iterator[Unreachable]:
    with postroad.connect("memory://") as backend:
        yield Unreachable(backend)


def test_a_loop_that_cannot_start_closes_its_buses(unreachable: Unreachable) -> None:
    with pytest.raises(Unavailable):
        ReviewLoop.serve(unreachable, adapter=Reviewer())

    assert len(unreachable.made) == 2
    assert all("closed" in str(bus.publish(MainLoopRequest(1)).errors) for bus in unreachable.made)


def test_a_client_that_cannot_start_closes_its_buses(unreachable: Unreachable) -> None:
    with pytest.raises(Unavailable):
        MainLoopClient.connect(unreachable)

    assert len(unreachable.made) == 2
    assert all("closed" in str(bus.publish(MainLoopRequest(1)).errors) for bus in unreachable.made)
