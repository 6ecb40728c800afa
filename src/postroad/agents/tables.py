"""The names and keys of what agents are kept in, for DynamoDB, for SQLite and for whoever draws up a topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroad.connections import TableIndex, TableShape
from postroad.queues import QueueSpec

EVENTS_STREAM: Final = "agent-events"
DEAD_QUEUE: Final = "agents-dead.fifo"
REJECTED_QUEUE: Final = "agents-rejected"
BY_SUBSCRIBER: Final = "bySubscriber"
STREAM_SHARDS: Final = 4
STREAM_RETENTION_HOURS: Final = 24
RETENTION_SECONDS: Final = 1_209_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table; `variable` names the variable that renames it on AWS."""

    name: str
    variable: str | None
    shape: TableShape


AGENTS: Final = Table(name="Agents", variable="AGENTS_TABLE", shape=TableShape(keys=("agentId",)))
SUBSCRIBERS: Final = Table(
    name="Subscribers",
    variable="SUBSCRIBERS_TABLE",
    shape=TableShape(
        keys=("producerId", "subscriberId"), indexes={BY_SUBSCRIBER: TableIndex(keys=("subscriberId", "producerId"))}
    ),
)
SUBSCRIBER_EVENTS: Final = Table(
    name="SubscriberEvents",
    variable="SUBSCRIBER_EVENTS_TABLE",
    shape=TableShape(keys=("subscriberId", "timestamp"), ttl_attribute="expiresAt", stream_view="NEW_IMAGE"),
)
AGENT_GRANTS: Final = Table(name="AgentGrants", variable=None, shape=TableShape(keys=("producerId", "subscriberId")))
TABLES: Final = (AGENTS, SUBSCRIBERS, SUBSCRIBER_EVENTS, AGENT_GRANTS)


def dead_letters(name: str = DEAD_QUEUE) -> QueueSpec:
    """The queue in which the dead letters of all agents lie; any queue may put them there, for each agent has one."""
    return QueueSpec(name, fifo=True, retention=RETENTION_SECONDS, dedup_scope="group", content_dedup=True)


def rejects(name: str = REJECTED_QUEUE) -> QueueSpec:
    """The queue of what could not be delivered to any agent."""
    return QueueSpec(name, retention=RETENTION_SECONDS)


def lane_name(agent_id: str) -> str:
    """The name of the queue from which an agent receives."""
    return f"agents-{agent_id}.fifo"
