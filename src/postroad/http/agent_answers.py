"""The forms of what the routes of agents answer, for the API's description."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from postroad.http.answers import EntryProblem

State = Literal["active", "paused", "draining"]


class AgentMade(msgspec.Struct):
    """A new agent with its token, which is shown this once."""

    agentId: str
    token: str
    createdAt: str
    queue: str


class AgentRow(msgspec.Struct):
    """One agent."""

    agentId: str
    createdAt: str
    order: Literal["producer", "total"]
    accept: Literal["listed", "all"]
    queue: str


class AgentPage(msgspec.Struct):
    """Agents."""

    items: list[AgentRow]
    next_cursor: str | None


class Listens(msgspec.Struct):
    """A subscription as its listener sees it."""

    producerId: str
    createdAt: str
    state: State


class IsHeard(msgspec.Struct):
    """A subscription as its producer sees it."""

    subscriberId: str
    createdAt: str
    state: State


class AgentDetail(AgentRow):
    """An agent and the first hundred producers it listens to."""

    subscriptions: list[Listens]


class ListensPage(msgspec.Struct):
    """Whom an agent listens to."""

    items: list[Listens]
    next_cursor: str | None


class IsHeardPage(msgspec.Struct):
    """Who listens to an agent."""

    items: list[IsHeard]
    next_cursor: str | None


class AgentGone(msgspec.Struct):
    """What went with a deleted agent."""

    discarded: int
    subscriptions: int
    subscribers: int


class AgentToken(msgspec.Struct):
    """A new token; the former one opens until then."""

    token: str
    previousValidUntil: str


class Replayed(msgspec.Struct):
    """How many events are delivered again."""

    replayed: int


class Redriven(msgspec.Struct):
    """How many dead letters are back."""

    redriven: int


class EventAccepted(msgspec.Struct):
    """Where an event lies on the stream."""

    eventId: str
    sequenceNumber: str
    shardId: str


class EventOutcome(msgspec.Struct):
    """What became of one event of a batch."""

    ok: bool
    eventId: str | None
    sequenceNumber: str | None
    error: EntryProblem | None


class EventBatch(msgspec.Struct):
    """What became of each event, in order."""

    results: list[EventOutcome]
    failed: int


class AgentDelivery(msgspec.Struct, omit_defaults=True):
    """A leased event with the receipt that settles it; `agentId` is the producer."""

    agentId: str
    timestamp: str
    eventType: str
    data: dict[str, Any]
    eventId: str
    subscriberId: str
    sequenceNumber: str
    messageId: str
    receipt: str
    receiveCount: int
    late: bool | msgspec.UnsetType = msgspec.UNSET
    replay: bool | msgspec.UnsetType = msgspec.UNSET
    traceparent: str | msgspec.UnsetType = msgspec.UNSET


class AgentDeliveries(msgspec.Struct):
    """Leased events; none when there was none in time."""

    deliveries: list[AgentDelivery]


class Lane(msgspec.Struct):
    """How much waits for an agent."""

    visible: int
    inFlight: int
    delayed: int
    held: int | None
    dead: int | None
    oldestAgeSeconds: float | None


class AgentDeadLetter(msgspec.Struct):
    """An event that failed too often."""

    agentId: str
    timestamp: str
    eventType: str
    data: dict[str, Any]
    eventId: str
    subscriberId: str
    sequenceNumber: str
    messageId: str
    receiveCount: int
    error: str | None
    reason: str | None
    deadAt: str | None


class AgentDeadLetterPage(msgspec.Struct):
    """Dead letters, oldest first."""

    items: list[AgentDeadLetter]
    next_cursor: str | None
