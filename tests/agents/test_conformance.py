"""The rules of FIFO queues, kept by lanes: a message is sent by publishing it under its group's id."""

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
from postroad.queues.port import AckResult, PeekedMessage, QueueStats, QueueTraits
from postroad.testing.clock import FakeClock
from postroad.testing.queues.fifo import FifoRules
from postroad.testing.queues.fixture import QueueFixture
from postroad.wiring import Backend, connect


class SentLane:
    """A lane that takes messages: what is sent is published, moved and delivered."""

    def __init__(self, agents: Agents, agent_id: str) -> None:
        self._agents = agents
        self._agent_id = agent_id
        self._lane: Queue = agents.queue(agent_id)
        self.name = self._lane.name

    @property
    def traits(self) -> QueueTraits:
        return self._lane.traits

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
        found = self._lane.receive(max_messages=max_messages, wait=wait, visibility=visibility)
        return [msgspec.structs.replace(each, body=json.loads(each.body)["data"]["body"].encode()) for each in found]

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        return self._lane.ack(deliveries)

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        return self._lane.extend(deliveries, seconds=seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        return self._lane.release(deliveries, after=after, error=error)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        return self._lane.reject(deliveries, reason=reason, error=error)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        return self._lane.peek(limit=limit, after=after, force=force)

    def stats(self) -> QueueStats:
        return self._lane.stats()


class Lanes:
    """Makes a lane for each queue that a rule asks for; its settings are those of its agents."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def create_queue(self, spec: QueueSpec) -> Queue:
        if spec.dead_letter is not None or spec.name.startswith("dead-"):
            pytest.skip("a lane has dead letters of its own")
        agents = self._backend.agents(visibility=spec.visibility)
        agents.register(spec.name.removesuffix(".fifo"))
        return SentLane(agents, spec.name.removesuffix(".fifo"))

    def queue(self, name: str) -> Queue:
        agents = self._backend.agents()
        return SentLane(agents, name.removeprefix("agents-").removesuffix(".fifo"))

    def update_queue(self, spec: QueueSpec) -> Queue:
        raise NotSupported("a lane's settings are those of its agents")

    def delete_queue(self, name: str) -> None:
        self._backend.agents().delete(name.removeprefix("agents-").removesuffix(".fifo"))

    def queue_spec(self, name: str) -> QueueSpec:
        raise NotSupported("a lane's settings are those of its agents")

    def queues(self) -> list[str]:
        return []

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        return []

    def sources(self, dead_letters: str) -> list[str]:
        return []


class TestLane(FifoRules):
    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[QueueFixture]:
        clock = FakeClock()
        url = f"sqlite:///{tmp_path}/postroad.db"
        backends = [connect(url, clock=clock)]

        def reopen() -> Lanes:
            backends[-1].close()
            backends.append(connect(url, clock=clock))
            return Lanes(backends[-1])

        yield QueueFixture(queues=Lanes(backends[0]), clock=clock, reopen=reopen)
        backends[-1].close()


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()
