"""Agents: subscriptions and ordered fan-out, on one SQLite file and on AWS."""

from typing import TYPE_CHECKING

from postroad.agents.agents import Agents
from postroad.agents.model import (
    Agent,
    AgentEvent,
    AgentPublishResult,
    AgentSettings as AgentSettings,
    Deleted,
    EventDelivery as EventDelivery,
    LaneStats,
    Page,
    Registered,
    RunStats,
    Subscription,
    check_agent_id as check_agent_id,
    checked_event_types as checked_event_types,
    claimed_id as claimed_id,
    is_agent_id as is_agent_id,
    not_found as not_found,
    now_text as now_text,
)
from postroad.agents.port import AgentStore as AgentStore, Mover as Mover
from postroad.agents.runner import AGGREGATOR as AGGREGATOR, AggregateResult, Runner, aggregate
from postroad.agents.stream import Published as Published, Rejected as Rejected
from postroad.agents.tables import (
    DEAD_QUEUE as DEAD_QUEUE,
    EVENTS_STREAM as EVENTS_STREAM,
    REJECTED_QUEUE as REJECTED_QUEUE,
)
from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.agents.aws.release import ReleaseResult, release
    from postroad.agents.aws.rows import UNREADABLE as UNREADABLE, Marker as Marker, Row as Row, row_of as row_of
    from postroad.agents.aws.store import AwsAgentStore as AwsAgentStore
    from postroad.agents.client import AgentClient
    from postroad.agents.handlers import AgentHandle, ReceivedEvent
    from postroad.agents.plan import Plan as Plan, PlanInput as PlanInput
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.agents.aws.release": "ReleaseResult release",
            "postroad.agents.aws.rows": "UNREADABLE Marker Row row_of",
            "postroad.agents.aws.store": "AwsAgentStore",
            "postroad.agents.client": "AgentClient",
            "postroad.agents.handlers": "AgentHandle ReceivedEvent",
            "postroad.agents.plan": "Plan PlanInput",
        },
    )

__all__ = [
    "Agent",
    "AgentClient",
    "AgentEvent",
    "AgentHandle",
    "AgentPublishResult",
    "Agents",
    "AggregateResult",
    "Deleted",
    "LaneStats",
    "Page",
    "ReceivedEvent",
    "Registered",
    "ReleaseResult",
    "RunStats",
    "Runner",
    "Subscription",
    "aggregate",
    "release",
]
