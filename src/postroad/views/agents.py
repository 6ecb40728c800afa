"""Agents as the CLI prints them and the HTTP API answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from postroad.queues import Delivery, PeekedMessage, read_dead
from postroad.views.service import EntryProblem, entry_problem

if TYPE_CHECKING:
    from postroad.agents import Agent, LaneStats, Published, Registered, Subscription

State = Literal["active", "paused", "draining"]


class AgentMade(msgspec.Struct, rename="camel"):
    """A new agent with its token, which is shown only once."""

    agent_id: str
    token: str
    created_at: str
    queue: str | msgspec.UnsetType = msgspec.UNSET


class AgentRow(msgspec.Struct, rename="camel"):
    """One agent."""

    agent_id: str
    created_at: str
    order: Literal["producer", "total"]
    accept: Literal["listed", "all"]
    queue: str


class SubscriptionRow(msgspec.Struct, rename="camel"):
    """A subscription as its subscriber sees it; without `eventTypes` it is to all events."""

    producer_id: str
    created_at: str
    state: State
    event_types: list[str] | msgspec.UnsetType = msgspec.UNSET


class SubscriberRow(msgspec.Struct, rename="camel"):
    """A subscription as its producer sees it; without `eventTypes` it is to all events."""

    subscriber_id: str
    created_at: str
    state: State
    event_types: list[str] | msgspec.UnsetType = msgspec.UNSET


class AgentDetail(AgentRow, rename="camel"):
    """An agent and its first hundred subscriptions."""

    subscriptions: list[SubscriptionRow]


class AgentToken(msgspec.Struct, rename="camel"):
    """A new token, and until when the previous one is valid."""

    token: str
    previous_valid_until: str


class Replayed(msgspec.Struct):
    """How many events are delivered again."""

    replayed: int


class Redriven(msgspec.Struct):
    """How many dead letters were redriven."""

    redriven: int


class EventAccepted(msgspec.Struct, rename="camel"):
    """The position of an event on the stream."""

    event_id: str
    sequence_number: str
    shard_id: str


class EventOutcome(msgspec.Struct, rename="camel"):
    """The result of one event of a batch."""

    ok: bool
    event_id: str | None
    sequence_number: str | None
    error: EntryProblem | None


class EventBatch(msgspec.Struct):
    """The result of each event, in order."""

    results: list[EventOutcome]
    failed: int


class AgentEventShown(msgspec.Struct, rename="camel", kw_only=True):
    """An event in an agent's queue; `agentId` is the producer."""

    agent_id: str
    timestamp: str
    event_type: str
    data: dict[str, Any]
    event_id: str
    subscriber_id: str
    sequence_number: str
    message_id: str
    receive_count: int
    late: bool | msgspec.UnsetType = msgspec.UNSET
    replay: bool | msgspec.UnsetType = msgspec.UNSET
    traceparent: str | msgspec.UnsetType = msgspec.UNSET


class AgentDelivery(AgentEventShown, rename="camel", kw_only=True):
    """A leased event with the receipt that settles it."""

    receipt: str


class AgentDeliveries(msgspec.Struct):
    """Leased events; none if none arrived in time."""

    deliveries: list[AgentDelivery]


class AgentStats(msgspec.Struct, rename="camel"):
    """How many messages wait for an agent."""

    visible: int
    in_flight: int
    delayed: int
    held: int | None
    dead: int | None
    oldest_age_seconds: float | None


class AgentDeadLetter(AgentEventShown, rename="camel", kw_only=True):
    """An event that failed too often, and why."""

    error: str | None
    reason: str | None
    dead_at: str | None


def registered(made: Registered) -> AgentMade:
    """Return a new agent with its token."""
    return AgentMade(made.agent_id, made.token, made.created_at, _queue(made))


def agent_row(agent: Agent) -> AgentRow:
    """Return one agent of a list."""
    return AgentRow(agent.agent_id, agent.created_at, agent.order, agent.accept, _queue(agent))


def agent_detail(agent: Agent) -> AgentDetail:
    """Return an agent with its first hundred subscriptions."""
    row = msgspec.structs.asdict(agent_row(agent))
    return AgentDetail(**row, subscriptions=[subscription_row(each) for each in agent.subscriptions])


def _queue(agent: Agent | Registered) -> str:
    return agent.queue_url or f"agents-{agent.agent_id}.fifo"


def subscription_row(subscription: Subscription) -> SubscriptionRow:
    """Return a subscription as its subscriber sees it."""
    return SubscriptionRow(subscription.producer_id, subscription.created_at, subscription.state, _types(subscription))


def subscriber_row(subscription: Subscription) -> SubscriberRow:
    """Return a subscription as its producer sees it."""
    return SubscriberRow(subscription.subscriber_id, subscription.created_at, subscription.state, _types(subscription))


def _types(subscription: Subscription) -> list[str] | msgspec.UnsetType:
    return msgspec.UNSET if subscription.event_types is None else list(subscription.event_types)


def accepted(outcome: Published) -> EventAccepted:
    """Return the position of a published event; raise its error if it was not published."""
    if outcome.error is not None:
        raise outcome.error
    assert outcome.event_id is not None
    assert outcome.sequence is not None
    assert outcome.shard is not None
    return EventAccepted(outcome.event_id, outcome.sequence, outcome.shard)


def event_outcome(outcome: Published) -> EventOutcome:
    """Return the result of one event of a batch."""
    return EventOutcome(
        ok=outcome.error is None,
        event_id=outcome.event_id if isinstance(outcome.event_id, str) else None,
        sequence_number=outcome.sequence,
        error=None if outcome.error is None else entry_problem(outcome.error),
    )


def agent_delivery(leased: Delivery) -> AgentDelivery:
    """Return a leased event with the receipt that settles it."""
    event = msgspec.json.decode(leased.body, type=dict[str, Any])
    lease = {"messageId": leased.message_id, "receipt": leased.receipt, "receiveCount": leased.receive_count}
    return msgspec.convert(event | lease, AgentDelivery)


def agent_dead_letter(dead: PeekedMessage) -> AgentDeadLetter:
    """Return an event that failed too often, and why."""
    event = msgspec.json.decode(dead.body, type=dict[str, Any])
    marker = read_dead(dead.attributes)
    error, reason, at = (None, None, None) if marker is None else (marker.error, marker.reason, marker.at)
    why = {"messageId": dead.message_id, "receiveCount": dead.receive_count}
    return msgspec.convert(event | why | {"error": error, "reason": reason, "deadAt": at}, AgentDeadLetter)


def agent_stats(stats: LaneStats) -> AgentStats:
    """Return how many messages wait for an agent."""
    return msgspec.convert(stats, AgentStats, from_attributes=True)
