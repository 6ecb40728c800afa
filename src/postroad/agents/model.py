"""What is told about agents, their subscriptions, events and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

Order = Literal["producer", "total"]
Accept = Literal["listed", "all"]
PairState = Literal["active", "paused", "draining"]
ORDERS: tuple[Order, ...] = ("producer", "total")
ACCEPTS: tuple[Accept, ...] = ("listed", "all")

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Registered:
    """A new agent with its token, which is shown this once."""

    agent_id: str
    token: str
    created_at: str
    queue_url: str | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One listener's subscription to one producer."""

    producer_id: str
    subscriber_id: str
    created_at: str
    state: PairState


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent and the first hundred producers it listens to."""

    agent_id: str
    created_at: str
    order: Order
    accept: Accept
    subscriptions: Sequence[Subscription]
    queue_url: str | None = None


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """An event to publish under an agent's id."""

    agent_id: str
    event_type: str
    data: dict[str, Any]
    timestamp: str | datetime | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPublishResult:
    """Where an event landed on the stream, or why it did not."""

    ok: bool
    event_id: str | None
    shard: str | None
    sequence: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """A part of a list; `next_cursor` goes on behind it."""

    items: Sequence[T_co]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What went with a deleted agent."""

    discarded: int
    subscriptions: int
    subscribers: int


@dataclass(frozen=True, slots=True)
class LaneStats:
    """How much a lane holds. `held` waits for the hold-back window or for `resume`; None where it cannot be told."""

    visible: int
    in_flight: int
    delayed: int
    held: int | None
    dead: int | None
    oldest_age_seconds: float | None


@dataclass(frozen=True, slots=True)
class RunStats:
    """What one round of a runner did."""

    read: int = 0
    written: int = 0
    released: int = 0
    rejected: int = 0
