"""Agents: subscriptions and ordered fan-out, on one SQLite file and on AWS."""

from postroad.agents.agents import Agents
from postroad.agents.aggregating import AggregateResult, aggregate
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
from postroad.agents.outgoing import ReleaseResult
from postroad.agents.releasing import release
from postroad.agents.runner import Runner

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
