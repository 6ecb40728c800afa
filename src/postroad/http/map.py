"""The map: topics, queues, streams, the outbox, handlers and agents, and the ways of messages between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from postroad.agents import Agents
from postroad.dashboard import MOST_QUEUES
from postroad.errors import ConfigurationError, NotFound, NotPermitted
from postroad.http.attention import size
from postroad.http.overview import Measured
from postroad.outbox import OutboxStatus
from postroad.queues import QueueOverview
from postroad.settings import Settings
from postroad.tasks import default_tasks
from postroad.views import EdgeKind, Map, MapEdge, MapNode, NodeKind
from postroad.wiring import Backend, buses_of

_MOST_AGENTS: Final = 100
MOST_DRAWN_AGENTS: Final = 10
_MOST_DRAWN_SUBSCRIPTIONS: Final = 5
_TASKS: Final = "tasks"


def draw_map(backend: Backend, settings: Settings, agents: Agents, found: Measured, *, whole: bool = True) -> Map:
    """Return the map; this reads the store.

    Args:
        backend: The store.
        settings: The modules that are loaded, the queues of tasks and the topic of the outbox.
        agents: The agents.
        found: What was measured.
        whole: False for a map that can be drawn: of many queues, those that hold most and what they are joined to, and
            the first agents.
    """
    drawing = _Drawing()
    queues = found.queues if whole else drawn(found)
    for each in queues:
        kind: NodeKind = "dead_letter" if each.spec.name in found.dead_letter_queues else "queue"
        drawing.add(MapNode(f"queue:{each.spec.name}", kind, each.spec.name, size(each)))
        if each.spec.dead_letter is not None:
            drawing.join(f"queue:{each.spec.name}", f"queue:{each.spec.dead_letter}", "dead_letter")
    for topic, queue in backend.ports.topics.subscribers([each.spec.name for each in queues]):
        drawing.add(MapNode(f"topic:{topic}", "topic", topic))
        drawing.join(f"topic:{topic}", f"queue:{queue}", "subscription")
    if len(queues) == len(found.queues):
        for topic in backend.topics():
            drawing.add(MapNode(f"topic:{topic}", "topic", topic))
    for name in backend.streams():
        drawing.add(MapNode(f"stream:{name}", "stream", name))
    if found.outbox is not None:
        pending = found.outbox.pending if isinstance(found.outbox, OutboxStatus) else None
        drawing.add(MapNode("outbox", "outbox", "outbox", pending))
        if settings.outbox_topic is not None:
            drawing.join("outbox", f"topic:{settings.outbox_topic}", "publish")
    _add_handlers(drawing, settings)
    _add_agents(drawing, agents, whole=whole)
    return drawing.map()


def _add_handlers(drawing: _Drawing, settings: Settings) -> None:
    """Add the handlers and tasks of the modules that this server has loaded."""
    for _, bus in buses_of(settings.load):
        if (queue := bus.group_queue) is not None:
            for name in bus.handler_names:
                drawing.add(MapNode(f"handler:{queue}:{name}", "handler", name))
                drawing.join(f"queue:{queue}", f"handler:{queue}:{name}", "handle")
    for task in default_tasks.definitions():
        queue = task.queue or next(iter(settings.task_queues), _TASKS)
        drawing.add(MapNode(f"handler:task:{task.name}", "handler", task.name))
        drawing.join(f"queue:{queue}", f"handler:task:{task.name}", "handle")


def _add_agents(drawing: _Drawing, agents: Agents, *, whole: bool) -> None:
    most, listened = (_MOST_AGENTS, _MOST_AGENTS) if whole else (MOST_DRAWN_AGENTS, _MOST_DRAWN_SUBSCRIPTIONS)
    with suppress(ConfigurationError, NotFound, NotPermitted):
        for agent in agents.list(limit=most).items:
            stats = agents.stats(agent.agent_id)
            depth = (stats.visible or 0) + (stats.in_flight or 0) + (stats.delayed or 0)
            drawing.add(MapNode(f"agent:{agent.agent_id}", "agent", agent.agent_id, depth))
            for each in agents.subscriptions(agent.agent_id, limit=listened).items:
                drawing.join(f"agent:{each.producer_id}", f"agent:{agent.agent_id}", "subscription")


def drawn(found: Measured) -> Sequence[QueueOverview]:
    """Return the queues that hold most, each with its dead-letter queue, as many as fit; all if there are few."""
    if len(found.queues) <= MOST_QUEUES:
        return found.queues
    chosen: dict[str, QueueOverview] = {}
    for each in found.largest:
        names = (each.spec.name, each.spec.dead_letter or "")
        pair = {name: found.by_name[name] for name in names if name in found.by_name}
        if len(chosen | pair) <= MOST_QUEUES:
            chosen |= pair
    return list(chosen.values())


class _Drawing:
    """A map in the making."""

    def __init__(self) -> None:
        self._nodes: dict[str, MapNode] = {}
        self._edges: dict[MapEdge, None] = {}

    def add(self, node: MapNode) -> None:
        self._nodes.setdefault(node.id, node)

    def join(self, source: str, target: str, kind: EdgeKind) -> None:
        self._edges[MapEdge(source, target, kind)] = None

    def map(self) -> Map:
        """Return the map without edges to what does not exist."""
        edges = [each for each in self._edges if each.source in self._nodes and each.target in self._nodes]
        return Map(list(self._nodes.values()), edges)
