"""The names and keys of what agents are kept in, for DynamoDB, for SQLite and for whoever draws up a topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

EVENTS_STREAM: Final = "agent-events"
DEAD_QUEUE: Final = "agents-dead.fifo"
REJECTED_QUEUE: Final = "agents-rejected"
BY_SUBSCRIBER: Final = "bySubscriber"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A second order of a table's rows."""

    name: str
    partition_key: str
    sort_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its keys are text; `variable` names the variable that renames it on AWS."""

    name: str
    variable: str | None
    partition_key: str
    sort_key: str | None = None
    index: Index | None = None
    ttl: str | None = None
    stream_view: Literal["NEW_IMAGE"] | None = None


AGENTS: Final = Table(name="Agents", variable="AGENTS_TABLE", partition_key="agentId")
SUBSCRIBERS: Final = Table(
    name="Subscribers",
    variable="SUBSCRIBERS_TABLE",
    partition_key="producerId",
    sort_key="subscriberId",
    index=Index(name=BY_SUBSCRIBER, partition_key="subscriberId", sort_key="producerId"),
)
SUBSCRIBER_EVENTS: Final = Table(
    name="SubscriberEvents",
    variable="SUBSCRIBER_EVENTS_TABLE",
    partition_key="subscriberId",
    sort_key="timestamp",
    ttl="expiresAt",
    stream_view="NEW_IMAGE",
)
AGENT_GRANTS: Final = Table(name="AgentGrants", variable=None, partition_key="producerId", sort_key="subscriberId")
TABLES: Final = (AGENTS, SUBSCRIBERS, SUBSCRIBER_EVENTS, AGENT_GRANTS)


def lane_name(agent_id: str) -> str:
    """The name of the queue from which an agent receives."""
    return f"agents-{agent_id}.fifo"
