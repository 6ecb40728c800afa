"""The buses between agents: control and state in order, telemetry without."""

from __future__ import annotations

from typing import Any

from postroad.topology.declarations import Component, QueueDecl
from postroad.topology.names import aws_name
from postroad.topology.templates.queues import FOUR_DAYS, dead_letters, dlq_name, queue
from postroad.topology.topology import Topology

_ORDERED = {"content_dedup": True, "dedup_scope": "group"}


def bus_topology(prefix: str = "") -> Topology:
    """The queues of agents' buses; `prefix` stands before each name."""
    ordered = [aws_name(f"{prefix}{name}", fifo=True) for name in ("agent-control", "agent-state")]
    names = (*ordered, aws_name(f"{prefix}agent-telemetry"))
    resources = [each for name in names for each in _queues(name, _ORDERED if name.endswith(".fifo") else {})]
    components = (
        Component(aws_name(f"{prefix}agent"), sends=names, consumes=names),
        Component(aws_name(f"{prefix}agent-operator"), operates=tuple(dlq_name(name) for name in names)),
    )
    return Topology(aws_name(f"{prefix}bus"), tuple(resources), components, tags={"ManagedBy": "postroad"})


def _queues(name: str, settings: dict[str, Any]) -> tuple[QueueDecl, QueueDecl]:
    dlq = dlq_name(name)
    used = queue(name, visibility=60, retention=FOUR_DAYS, receive_wait=20, dead_letter=dlq, **settings)
    return dead_letters(dlq, name), used
