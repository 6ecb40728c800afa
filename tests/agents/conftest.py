from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from postroad.agents import AgentEvent, Agents, Runner
from postroad.queues import Delivery
from postroad.testing.clock import FakeClock
from postroad.wiring import Backend, connect


@dataclass
class Post:
    """Agents on one backend with a clock that the test moves."""

    backend: Backend
    clock: FakeClock
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agents: Agents = self.backend.agents(**self.settings)
        self.runner: Runner = self.agents.runner(worker="test")

    def configured(self, **settings: Any) -> Post:
        """Return the same agents with other settings."""
        return Post(self.backend, self.clock, settings)

    def register(self, *agent_ids: str, **options: Any) -> None:
        for agent_id in agent_ids:
            self.agents.register(agent_id, **options)

    def publish(self, agent_id: str, *numbers: int, **options: Any) -> None:
        """Publish events of these numbers and move them to the queues."""
        results = self.agents.publish([AgentEvent(agent_id, "counted", {"n": n}, **options) for n in numbers])
        assert all(result.ok for result in results), results
        self.move()

    def move(self) -> None:
        while self.runner.run_once().read:
            pass

    def take(self, agent_id: str, count: int = 10) -> list[Delivery]:
        return self.agents.queue(agent_id).receive(max_messages=count)

    def drain(self, agent_id: str) -> list[int]:
        """Receive and ack everything; return the numbers in order."""
        numbers: list[int] = []
        while taken := self.take(agent_id):
            numbers += [n_of(delivery) for delivery in taken]
            self.agents.queue(agent_id).ack(taken)
        return numbers


def n_of(delivery: Delivery) -> int:
    return int(body_of(delivery)["data"]["n"])


def body_of(delivery: Delivery) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(delivery.body)
    return body


@pytest.fixture(params=["sqlite", "memory"])
def post(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Post]:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/postroad.db" if request.param == "sqlite" else "memory://"
    with connect(url, clock=clock) as backend:
        yield Post(backend, clock)


@pytest.fixture
def file_post(tmp_path: Path) -> Iterator[Post]:
    clock = FakeClock()
    with connect(f"sqlite:///{tmp_path}/postroad.db", clock=clock) as backend:
        yield Post(backend, clock)
