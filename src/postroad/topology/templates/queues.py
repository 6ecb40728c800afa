"""Queues with their dead letters, as every template declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from postroad.errors import InvalidName
from postroad.queues import QueueSpec
from postroad.topology.declarations import QueueDecl
from postroad.topology.findings import Finding, refuse
from postroad.topology.names import name_finding

FOUR_DAYS = 345_600
FOURTEEN_DAYS = 1_209_600


def queue(name: str, *, tags: Mapping[str, str] | None = None, **settings: Any) -> QueueDecl:
    """A queue, or `TopologyError` naming it when AWS would refuse its name."""
    return declared(lambda name: QueueSpec(name, fifo=name.endswith(".fifo"), **settings), name, tags=tags)


def declared(spec: Callable[[str], QueueSpec], name: str, *, tags: Mapping[str, str] | None = None) -> QueueDecl:
    """The queue that a package declares, or `TopologyError` naming it when AWS would refuse its name."""
    try:
        return QueueDecl(spec(name), tags=dict(tags or {}))
    except InvalidName as error:
        finding = name_finding("queue", name) or Finding("name-invalid", "error", name, str(error), error.remedy)
        raise refuse([finding]) from error


def dead_letters(name: str, *sources: str, tags: Mapping[str, str] | None = None, **settings: Any) -> QueueDecl:
    """A dead-letter queue that keeps what it gets for 14 days, for these sources only; for all when none is named."""
    allowed: Any = sources or "all"
    return queue(name, tags=tags, retention=FOURTEEN_DAYS, redrive_allow=allowed, **settings)


def dlq_name(name: str) -> str:
    """'orders.fifo' has its dead letters in 'orders-dlq.fifo'."""
    stem = name.removesuffix(".fifo")
    return f"{stem}-dlq{name[len(stem) :]}"
