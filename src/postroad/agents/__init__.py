"""Agents: subscriptions and ordered fan-out, on one SQLite file and on AWS."""

from postroad.agents.agents import Agents
from postroad.agents.aggregating import AggregateResult, aggregate
from postroad.agents.aws.rows import UNREADABLE as UNREADABLE, row_of as row_of
from postroad.agents.aws.store import AwsAgentStore as AwsAgentStore
from postroad.agents.model import (
    Agent,
    AgentEvent,
    AgentPublishResult,
    Deleted,
    LaneStats,
    Page,
    Registered,
    RunStats,
    Subscription,
)
from postroad.agents.outgoing import Marker as Marker, ReleaseResult, Row as Row
from postroad.agents.plan import Plan as Plan, PlanInput as PlanInput
from postroad.agents.port import AgentStore as AgentStore, Mover as Mover, Rejected as Rejected
from postroad.agents.publisher import Published as Published
from postroad.agents.records import Unreadable as Unreadable
from postroad.agents.releasing import release
from postroad.agents.rules import (
    check_agent_id as check_agent_id,
    is_agent_id as is_agent_id,
    not_found as not_found,
    now_text as now_text,
)
from postroad.agents.runner import Runner
from postroad.agents.settings import AgentSettings as AgentSettings
from postroad.agents.tables import (
    DEAD_QUEUE as DEAD_QUEUE,
    EVENTS_STREAM as EVENTS_STREAM,
    REJECTED_QUEUE as REJECTED_QUEUE,
)
from postroad.agents.tokens import claimed_id as claimed_id

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentPublishResult",
    "Agents",
    "AggregateResult",
    "Deleted",
    "LaneStats",
    "Page",
    "Registered",
    "ReleaseResult",
    "RunStats",
    "Runner",
    "Subscription",
    "aggregate",
    "release",
]
