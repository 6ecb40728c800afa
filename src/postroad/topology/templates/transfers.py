"""Transfers: one topic of events, one queue for each service that consumes them."""

from __future__ import annotations

from postroad.topology.declarations import AlarmDecl, Component, QueueDecl, Resource, SubscriptionDecl, TopicDecl
from postroad.topology.names import aws_name, role_name
from postroad.topology.templates.queues import FOUR_DAYS, dead_letters, dlq_name, queue
from postroad.topology.topology import Topology

_CONSUMERS = ("gateway.usdc", "ledger.postings", "projections.timeline")
_FILTERS = {"gateway.usdc": {"EventType": ("events.transfers.submitted.usdc",)}}
_FIVE_MINUTES = 5


def transfers_topology(prefix: str = "") -> Topology:
    """The topic and queues of transfers; `prefix` stands before each name."""
    topic = aws_name(f"{prefix}events.transfers", fifo=True)
    resources: list[Resource] = [TopicDecl(topic, fifo=True)]
    role = role_name(aws_name(f"{prefix}producer")) if prefix else None
    components = [Component("producer", publishes=(topic,), role=role)]
    for consumer in _CONSUMERS:
        name = aws_name(f"{prefix}{consumer}", fifo=True)
        resources += [*_queues(name), SubscriptionDecl(topic, name, filter=_FILTERS.get(consumer, {}))]
        components.append(Component(name.removesuffix(".fifo"), consumes=(name,)))
    return Topology(
        aws_name(f"{prefix}transfers"), (*resources, *transfer_alarms(prefix, topic)), tuple(components),
        {"ManagedBy": "postroad"},
    )  # fmt: skip


def _queues(name: str) -> tuple[QueueDecl, QueueDecl]:
    dlq = dlq_name(name)
    used = queue(name, visibility=60, retention=FOUR_DAYS, max_receives=5, dead_letter=dlq)
    return dead_letters(dlq, name), used


def transfer_alarms(prefix: str, topic: str) -> tuple[AlarmDecl, ...]:
    """The four alarms of a transactional outbox and its consumers, named after their metrics."""
    return (
        _alarm(prefix, "event_outbox_backlog", topic, 5_000),
        _alarm(prefix, "event_publish_lag_seconds", topic, 60),
        _alarm(prefix, "event_consumer_lag_seconds", topic, 300),
        AlarmDecl(f"{prefix}dead_letter_count", "dead_letter_count", topic, 1, namespace="Postroad"),
    )


def _alarm(prefix: str, metric: str, topic: str, threshold: int) -> AlarmDecl:
    # Who reports nothing is dead, hangs, or cannot reach its database.
    return AlarmDecl(
        f"{prefix}{metric}", metric, topic, threshold, namespace="Postroad", comparison=">", periods=_FIVE_MINUTES,
        missing="breaching",
    )  # fmt: skip
