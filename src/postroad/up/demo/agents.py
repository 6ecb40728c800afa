"""Scene `agents`: a scout finds stores, a planner plans what to do with them, and a writer writes about the plans."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from postroad.agents import AgentHandle, ReceivedEvent
from postroad.errors import AgentExists
from postroad.up.demo.stage import Stage
from postroad.wiring import Backend

SCENE = "agents"
SCOUT, PLANNER, WRITER = "demo-scout", "demo-planner", "demo-writer"
FOUND = ("a bakery in Lyon", "a bookshop in Porto", "a florist in Ghent", "a potter in Faenza", "a tailor in Naples")
PLANNED = 0.4


def prepare(backend: Backend) -> None:
    """Register the agents, and let each listen to the one before it."""
    agents = backend.agents()
    for name in (SCOUT, PLANNER, WRITER):
        with suppress(AgentExists):
            agents.register(name)
    agents.subscribe_many([(PLANNER, SCOUT), (WRITER, PLANNER)])


def play(stage: Stage) -> None:
    """Let the agents work until the stage stops."""
    agents = stage.backend.agents(**stage.settings.agents)
    scout, planner, writer = (agents.agent(name) for name in (SCOUT, PLANNER, WRITER))

    @planner.on(producer=SCOUT)
    def plan(event: ReceivedEvent) -> None:
        # An event that comes twice has the same plan, under the same id.
        if event.data["worth"] and not stage.quiet.is_set():
            _publish(stage, planner, "plan.made", {"for": event.data["what"]}, f"plan-{event.event_id}")
        stage.database.effect(SCENE, event.event_id, PLANNER, failures=event.receive_count - 1)

    @writer.on(producer=PLANNER)
    def write(event: ReceivedEvent) -> None:
        stage.database.effect(SCENE, event.event_id, WRITER, failures=event.receive_count - 1)

    with stage.working(planner.run, writer.run):
        for _ in stage.beats(3):
            worth = stage.chance.random() < PLANNED
            _publish(stage, scout, "store.found", {"what": stage.chance.choice(FOUND), "worth": worth})


def _publish(stage: Stage, agent: AgentHandle, event_type: str, data: dict[str, Any], id: str | None = None) -> None:
    result = agent.publish(event_type, data, event_id=id)
    assert result.event_id is not None
    stage.database.published(SCENE, result.event_id)
