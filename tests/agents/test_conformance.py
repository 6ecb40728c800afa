"""Agents' queues follow the rules of FIFO queues: a message is sent by publishing it under its group's id."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from postroad.agents import AgentEvent, Agents
from postroad.errors import AgentExists, NotSupported
from postroad.queues import Delivery, OutgoingMessage, Queue, QueueOverview, QueueSpec, SendResult
from postroad.testing.clock import FakeClock
from postroad.testing.queues.fifo import FifoRules
from postroad.testing.queues.fixture import QueueFixture
from postroad.wiring import Backend, connect


class PublishedQueue:
    """An agent's queue that accepts messages: what is sent is published, moved and delivered."""

    def __init__(self, agents: Agents, agent_id: str) -> None:
        self._agents = agents
        self._agent_id = agent_id
        queue = self._queue = agents.queue(agent_id)
        self.name, self.traits = queue.name, queue.traits
        self.ack, self.extend, self.release, self.reject = queue.ack, queue.extend, queue.release, queue.reject
        self.peek, self.stats = queue.peek, queue.stats

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        for group in {str(message.group) for message in messages}:
            with contextlib.suppress(AgentExists):
                self._agents.register(group)
            self._agents.subscribe(self._agent_id, group)
        results = self._agents.publish(
            [AgentEvent(str(each.group), "sent", {"body": _text(each.body)}, None, each.dedup_id) for each in messages]
        )
        runner = self._agents.runner(worker="conformance")
        while runner.run_once().read:
            pass
        return [SendResult(result.ok) for result in results]

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        found = self._queue.receive(max_messages=max_messages, wait=wait, visibility=visibility)
        return [msgspec.structs.replace(each, body=json.loads(each.body)["data"]["body"].encode()) for each in found]


class AgentQueues:
    """Makes an agent for each queue that a rule asks for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def create_queue(self, spec: QueueSpec) -> Queue:
        if spec.dead_letter is not None or spec.name.startswith("dead-"):
            pytest.skip("an agent's queue has dead letters of its own")
        agents = self._backend.agents(visibility=spec.visibility)
        agents.register(spec.name.removesuffix(".fifo"))
        return PublishedQueue(agents, spec.name.removesuffix(".fifo"))

    def queue(self, name: str) -> Queue:
        agents = self._backend.agents()
        return PublishedQueue(agents, name.removeprefix("agents-").removesuffix(".fifo"))

    def update_queue(self, spec: QueueSpec) -> Queue:
        raise NotSupported("the settings of an agent's queue are those of its agents")

    def delete_queue(self, name: str) -> None:
        self._backend.agents().delete(name.removeprefix("agents-").removesuffix(".fifo"))

    def queue_spec(self, name: str) -> QueueSpec:
        raise NotSupported("the settings of an agent's queue are those of its agents")

    def queues(self) -> list[str]:
        return []

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        return []

    def sources(self, dead_letters: str) -> list[str]:
        return []


class TestAgentQueue(FifoRules):
    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[QueueFixture]:
        clock = FakeClock()
        url = f"sqlite:///{tmp_path}/postroad.db"
        backends = [connect(url, clock=clock)]

        def reopen() -> AgentQueues:
            backends[-1].close()
            backends.append(connect(url, clock=clock))
            return AgentQueues(backends[-1])

        yield QueueFixture(queues=AgentQueues(backends[0]), clock=clock, reopen=reopen)
        backends[-1].close()


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()
