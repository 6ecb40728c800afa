"""How everything is connected, as the HTTP API answers it and the dashboard draws it."""

from __future__ import annotations

from typing import Literal

import msgspec

NodeKind = Literal["topic", "queue", "dead_letter", "stream", "outbox", "handler", "agent"]
EdgeKind = Literal["subscription", "dead_letter", "publish", "handle"]


class MapNode(msgspec.Struct, frozen=True):
    """Something that holds, sends or handles messages; `depth` is how many wait in it, None if nothing can."""

    id: str
    kind: NodeKind
    name: str
    depth: int | None = None


class MapEdge(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """The way of messages from one node to another."""

    source: str
    target: str
    kind: EdgeKind


class Map(msgspec.Struct):
    """How messages travel: every edge joins two of the nodes."""

    nodes: list[MapNode]
    edges: list[MapEdge]
