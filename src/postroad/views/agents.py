"""Agents as the CLI prints them and the HTTP API answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from postroad.queues import Delivery, PeekedMessage, read_dead
from postroad.views.problems import EntryProblem, entry_problem

if TYPE_CHECKING:
    from postroad.agents import Agent, LaneStats, Published, Registered, Subscription

State = Literal["active", "paused", "draining"]


class AgentMade(msgspec.Struct, rename="camel"):
    """A new agent with its token, which is shown this once."""

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


class AgentPage(msgspec.Struct):
    """Agents."""

    items: list[AgentRow]
    next_cursor: str | None


class Listens(msgspec.Struct, rename="camel"):
    """A subscription as its listener sees it."""

    producer_id: str
    created_at: str
    state: State


class IsHeard(msgspec.Struct, rename="camel"):
    """A subscription as its producer sees it."""

    subscriber_id: str
    created_at: str
    state: State


class AgentDetail(AgentRow, rename="camel"):
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


class AgentToken(msgspec.Struct, rename="camel"):
    """A new token; the former one opens until then."""

    token: str
    previous_valid_until: str


class Replayed(msgspec.Struct):
    """How many events are delivered again."""

    replayed: int


class Redriven(msgspec.Struct):
    """How many dead letters are back."""

    redriven: int


class EventAccepted(msgspec.Struct, rename="camel"):
    """Where an event lies on the stream."""

    event_id: str
    sequence_number: str
    shard_id: str


class EventOutcome(msgspec.Struct, rename="camel"):
    """What became of one event of a batch."""

    ok: bool
    event_id: str | None
    sequence_number: str | None
    error: EntryProblem | None


class EventBatch(msgspec.Struct):
    """What became of each event, in order."""

    results: list[EventOutcome]
    failed: int


class AgentEventShown(msgspec.Struct, rename="camel", kw_only=True):
    """An event as it lies in an agent's queue; `agentId` is the producer."""

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
    """Leased events; none when there was none in time."""

    deliveries: list[AgentDelivery]


class Lane(msgspec.Struct, rename="camel"):
    """How much waits for an agent."""

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


class AgentDeadLetterPage(msgspec.Struct):
    """Dead letters, oldest first."""

    items: list[AgentDeadLetter]
    next_cursor: str | msgspec.UnsetType | None = msgspec.UNSET
    """None on the last page; left out where all are listed at once."""


def registered(made: Registered) -> AgentMade:
    """Return a new agent with its token."""
    return AgentMade(made.agent_id, made.token, made.created_at, made.queue_url or _queue_name(made.agent_id))


def agent_row(agent: Agent) -> AgentRow:
    """Return one agent of a list."""
    return AgentRow(**_row(agent))


def agent_detail(agent: Agent) -> AgentDetail:
    """Return an agent with the first hundred producers it listens to."""
    subscriptions = [listens(each) for each in agent.subscriptions]
    return AgentDetail(**_row(agent), subscriptions=subscriptions)


def listens(subscription: Subscription) -> Listens:
    """Return a subscription as its listener sees it."""
    return Listens(subscription.producer_id, subscription.created_at, subscription.state)


def is_heard(subscription: Subscription) -> IsHeard:
    """Return a subscription as its producer sees it."""
    return IsHeard(subscription.subscriber_id, subscription.created_at, subscription.state)


def accepted(outcome: Published) -> EventAccepted:
    """Return where a published event lies on the stream; raise its error if it was not published."""
    if outcome.error is not None:
        raise outcome.error
    assert outcome.event_id is not None
    assert outcome.sequence is not None
    assert outcome.shard is not None
    return EventAccepted(outcome.event_id, outcome.sequence, outcome.shard)


def event_outcome(outcome: Published) -> EventOutcome:
    """Return what became of one event of a batch."""
    return EventOutcome(
        ok=outcome.error is None,
        event_id=outcome.event_id if isinstance(outcome.event_id, str) else None,
        sequence_number=outcome.sequence,
        error=None if outcome.error is None else entry_problem(outcome.error),
    )


def agent_delivery(leased: Delivery) -> AgentDelivery:
    """Return a leased event with the receipt that settles it."""
    lease = {"messageId": leased.message_id, "receipt": leased.receipt, "receiveCount": leased.receive_count}
    return msgspec.convert({**_body(leased.body), **lease}, AgentDelivery)


def agent_dead_letter(dead: PeekedMessage) -> AgentDeadLetter:
    """Return an event that failed too often, and why."""
    marker = read_dead(dead.attributes)
    why = {
        "messageId": dead.message_id,
        "receiveCount": dead.receive_count,
        "error": None if marker is None else marker.error,
        "reason": None if marker is None else marker.reason,
        "deadAt": None if marker is None else marker.at,
    }
    return msgspec.convert({**_body(dead.body), **why}, AgentDeadLetter)


def lane_stats(stats: LaneStats) -> Lane:
    """Return how much waits for an agent."""
    return msgspec.convert(stats, Lane, from_attributes=True)


def _row(agent: Agent) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "created_at": agent.created_at,
        "order": agent.order,
        "accept": agent.accept,
        "queue": agent.queue_url or _queue_name(agent.agent_id),
    }


def _queue_name(agent_id: str) -> str:
    return f"agents-{agent_id}.fifo"


def _body(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])
