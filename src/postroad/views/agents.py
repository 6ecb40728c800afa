"""The documents of agents: what the CLI prints and the HTTP API answers, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroad.queues import Delivery, PeekedMessage
from postroad.queues.markers import read_dead

if TYPE_CHECKING:
    from postroad.agents import Agent, LaneStats, Registered, Subscription
    from postroad.agents.publishing import Published


def registered(made: Registered) -> dict[str, Any]:
    """A new agent with its token."""
    return {
        "agentId": made.agent_id,
        "token": made.token,
        "createdAt": made.created_at,
        "queue": made.queue_url or _lane(made.agent_id),
    }


def agent_row(agent: Agent) -> dict[str, Any]:
    """One agent of a list."""
    return {
        "agentId": agent.agent_id,
        "createdAt": agent.created_at,
        "order": agent.order,
        "accept": agent.accept,
        "queue": agent.queue_url or _lane(agent.agent_id),
    }


def agent_document(agent: Agent) -> dict[str, Any]:
    """An agent with the first hundred producers it listens to."""
    return {**agent_row(agent), "subscriptions": [listening(each, "producerId") for each in agent.subscriptions]}


def listening(subscription: Subscription, side: str) -> dict[str, Any]:
    """A subscription seen from one side: `side` names the other one."""
    other = subscription.producer_id if side == "producerId" else subscription.subscriber_id
    return {side: other, "createdAt": subscription.created_at, "state": subscription.state}


def published(outcome: Published) -> dict[str, Any]:
    """An event that is on the stream."""
    return {"eventId": outcome.event_id, "sequenceNumber": outcome.sequence, "shardId": outcome.shard}


def agent_delivery(leased: Delivery) -> dict[str, Any]:
    """A leased event with the receipt that settles it."""
    return {
        **_body(leased.body),
        "messageId": leased.message_id,
        "receipt": leased.receipt,
        "receiveCount": leased.receive_count,
    }


def agent_dead_letter(dead: PeekedMessage) -> dict[str, Any]:
    """An event that failed too often, and why."""
    marker = read_dead(dead.attributes)
    return {
        **_body(dead.body),
        "messageId": dead.message_id,
        "receiveCount": dead.receive_count,
        "error": None if marker is None else marker.error,
        "reason": None if marker is None else marker.reason,
        "deadAt": None if marker is None else marker.at,
    }


def lane_stats(stats: LaneStats) -> dict[str, Any]:
    """How much a lane holds."""
    return {
        "visible": stats.visible,
        "inFlight": stats.in_flight,
        "delayed": stats.delayed,
        "held": stats.held,
        "dead": stats.dead,
        "oldestAgeSeconds": stats.oldest_age_seconds,
    }


def _body(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def _lane(agent_id: str) -> str:
    return f"agents-{agent_id}.fifo"
