"""Agents: their tables, the stream of their events, and the functions between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from postroad.agents import tables
from postroad.topology.declarations import (
    DEFAULT_BUS,
    AlarmDecl,
    Component,
    FunctionDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    TableDecl,
    TriggerDecl,
)
from postroad.topology.names import role_name
from postroad.topology.templates.queues import declared
from postroad.topology.topology import Topology

LAMBDA = "lambda.amazonaws.com"
_ITERATOR_AGE_MS = 60_000
_PUBLISHER_SECONDS = 360
_BATCH = 100
_UNTIL_IT_EXPIRES = -1


def agents_topology(prefix: str = "") -> Topology:
    """Everything agents need; `prefix` stands before each name."""
    names = {table.name: f"{prefix}{table.name}" for table in tables.TABLES}
    stream, dead = f"{prefix}{tables.EVENTS_STREAM}", f"{prefix}{tables.DEAD_QUEUE}"
    rejected, lanes = f"{prefix}{tables.REJECTED_QUEUE}", f"{prefix}{tables.queue_name('*')}"
    functions = _functions(prefix, names, stream, rejected)
    return Topology(
        f"{prefix}agents",
        (
            *(TableDecl.of(names[table.name], table.shape) for table in tables.TABLES),
            StreamDecl(stream, tables.STREAM_SHARDS, tables.STREAM_RETENTION_HOURS),
            declared(tables.dead_letters, dead),
            declared(tables.rejects, rejected),
            *functions,
            RuleDecl(f"{prefix}agents-sweep", DEFAULT_BUS, f"{prefix}sweeper", "sweeper", schedule="rate(1 minute)"),
            *_alarms(prefix),
        ),
        components=tuple(
            replace(each, role=role_name(f"{prefix}{each.name}")) if prefix else each
            for each in _components(names, stream=stream, dead=dead, rejected=rejected, lanes=lanes)
        ),
        tags={"ManagedBy": "postroad"},
    )


def _functions(prefix: str, names: dict[str, str], stream: str, rejected: str) -> Sequence[Resource]:
    environment = {table.variable: names[table.name] for table in tables.TABLES if table.variable is not None}
    environment["EVENTS_STREAM"] = stream
    rows = names[tables.SUBSCRIBER_EVENTS.name]
    return (
        FunctionDecl(
            f"{prefix}aggregator",
            "postroad.lambdas.aggregator.handler",
            "aggregator",
            timeout=60,
            environment=environment,
            triggers=(_trigger(stream),),
            on_failure=rejected,
        ),
        FunctionDecl(
            f"{prefix}publisher",
            "postroad.lambdas.publisher.handler",
            "publisher",
            timeout=_PUBLISHER_SECONDS,
            environment=environment,
            triggers=(_trigger(rows),),
            on_failure=rejected,
        ),
        FunctionDecl(
            f"{prefix}sweeper",
            "postroad.lambdas.sweeper.handler",
            "sweeper",
            timeout=60,
            environment=environment,
        ),
    )


def _trigger(source: str) -> TriggerDecl:
    """What is given up is lost, for a failure destination gets no record: only the stream's retention ends a retry."""
    return TriggerDecl(source, batch_size=_BATCH, max_attempts=_UNTIL_IT_EXPIRES)


def _components(names: dict[str, str], *, stream: str, dead: str, rejected: str, lanes: str) -> tuple[Component, ...]:
    everything = tuple(names.values())
    agents, subscribers = names[tables.AGENTS.name], names[tables.SUBSCRIBERS.name]
    events = names[tables.SUBSCRIBER_EVENTS.name]
    sending: dict[str, Any] = {
        "sends": (lanes, rejected),
        "reads": (agents, subscribers, events),
        "writes": (agents, subscribers),
    }
    return (
        Component("aggregator", reads=(subscribers,), writes=(events,), sends=(rejected,), trust=LAMBDA),
        Component("publisher", **sending, trust=LAMBDA),
        Component("sweeper", **sending, trust=LAMBDA),
        Component(
            "api",
            creates=(lanes,),
            sends=(lanes,),
            consumes=(lanes,),
            operates=(dead,),
            observes=(rejected,),
            puts=(stream,),
            reads=everything,
            writes=everything,
        ),
    )


def _alarms(prefix: str) -> tuple[AlarmDecl, ...]:
    late = (
        AlarmDecl(
            f"{prefix}agents-{name}-iterator-age",
            "IteratorAge",
            f"{prefix}{name}",
            _ITERATOR_AGE_MS,
            namespace="AWS/Lambda",
            comparison=">",
        )
        for name in ("aggregator", "publisher")
    )
    throttled = (
        AlarmDecl(
            f"{prefix}agents-{name}-throttles",
            "Throttles",
            f"{prefix}{name}",
            1,
            namespace="AWS/Lambda",
            statistic="Sum",
        )
        for name in ("aggregator", "publisher", "sweeper")
    )
    return (*late, *throttled)
