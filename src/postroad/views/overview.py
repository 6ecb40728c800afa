"""Everything at a glance, and how it is connected, as the HTTP API answers it and the dashboard shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

Severity = Literal["error", "warning"]
NodeKind = Literal["topic", "queue", "dead_letter", "stream", "outbox", "handler", "agent"]
EdgeKind = Literal["subscription", "dead_letter", "publish", "handle"]


class Series(msgspec.Struct):
    """How many messages were sent, acked and dead-lettered in each step of the window, oldest first."""

    sent: list[int]
    acked: list[int]
    dead: list[int]


class Totals(msgspec.Struct):
    """What happened to messages since the store was made, in all processes; None where the store does not count."""

    sent: int | None
    received: int | None
    acked: int | None
    dead: int | None
    redriven: int | None
    expired: int | None


class Backlog(msgspec.Struct):
    """What waits. Messages in dead-letter queues wait for a person, and are counted in `dead` only."""

    visible: int
    in_flight: int
    delayed: int
    outbox_pending: int | None
    """Rows of the outbox that are not published; None while it cannot be read."""
    dead: int


class Lags(msgspec.Struct):
    """The ages of what has waited longest, in seconds: in the outbox, in a queue for its consumer, and anywhere."""

    publish: float | None
    consumer: float
    oldest: float


class Work(msgspec.Struct, frozen=True):
    """What there is of each kind. Rows are read up to 100 of a kind; None if they cannot be read."""

    failed_tasks: int | None = None
    """Tasks that failed within the hour."""
    schedules: int | None = None
    workers: int | None = None
    agents: int | None = None
    events: int | None = None
    """Events in the journal of the last hour."""
    jobs: int | None = None
    """Jobs in which a task runs or can run."""
    queues: int | None = None
    """Queues, those for dead letters included."""
    notifications: int | None = None
    """Messages in the queues of notifications."""
    unhealthy: int | None = None
    """Parts that do not run, and doubts about the files: what the page of health shows."""
    audits: int | None = None
    """Records of the audit file."""


class Attention(msgspec.Struct, frozen=True):
    """Something for a person to look at, and the page on which it is repaired."""

    kind: str
    severity: Severity
    text: str
    href: str


class Overview(msgspec.Struct):
    """Whether anything is wrong, what waits, and how much happened."""

    at: datetime
    window_seconds: int
    step_seconds: int
    series: Series
    totals: Totals
    backlog: Backlog
    lag_seconds: Lags
    work: Work
    attention: list[Attention]


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
