"""Queues with their dead letters, and the topologies of buses and transfers, which consist of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from postroad.errors import InvalidName
from postroad.queues import QueueSpec
from postroad.topology.declarations import AlarmDecl, Component, QueueDecl, Resource, SubscriptionDecl, TopicDecl
from postroad.topology.names import aws_name, name_finding, role_name
from postroad.topology.topology import Finding, Topology, refuse

FOUR_DAYS = 345_600
FOURTEEN_DAYS = 1_209_600


def queue(name: str, *, tags: Mapping[str, str] | None = None, **settings: Any) -> QueueDecl:
    """A queue, or `TopologyError` naming it when AWS would refuse its name."""
    return declared(lambda name: QueueSpec(name, fifo=name.endswith(".fifo"), **settings), name, tags=tags)


def declared(spec: Callable[[str], QueueSpec], name: str, *, tags: Mapping[str, str] | None = None) -> QueueDecl:
    """The queue that a package declares, or `TopologyError` naming it when AWS would refuse its name."""
    try:
        return QueueDecl(spec(name), tags=dict(tags or {}))
    except InvalidName as error:
        finding = name_finding("queue", name) or Finding("name-invalid", "error", name, str(error), error.remedy)
        raise refuse([finding]) from error


def dead_letters(name: str, *sources: str, tags: Mapping[str, str] | None = None, **settings: Any) -> QueueDecl:
    """A dead-letter queue that keeps what it gets for 14 days, for these sources only; for all when none is named."""
    allowed: Any = sources or "all"
    return queue(name, tags=tags, retention=FOURTEEN_DAYS, redrive_allow=allowed, **settings)


def dlq_name(name: str) -> str:
    """'orders.fifo' has its dead letters in 'orders-dlq.fifo'."""
    stem = name.removesuffix(".fifo")
    return f"{stem}-dlq{name[len(stem) :]}"


_ORDERED = {"content_dedup": True, "dedup_scope": "group"}


def bus_topology(prefix: str = "") -> Topology:
    """The queues of agents' buses; `prefix` stands before each name."""
    ordered = [aws_name(f"{prefix}{name}", fifo=True) for name in ("agent-control", "agent-state")]
    names = (*ordered, aws_name(f"{prefix}agent-telemetry"))
    resources = [each for name in names for each in _queues(name, _ORDERED if name.endswith(".fifo") else {})]
    components = (
        Component(aws_name(f"{prefix}agent"), sends=names, consumes=names),
        Component(aws_name(f"{prefix}agent-operator"), operates=tuple(dlq_name(name) for name in names)),
    )
    return Topology(aws_name(f"{prefix}bus"), tuple(resources), components, tags={"ManagedBy": "postroad"})


def _queues(name: str, settings: dict[str, Any]) -> tuple[QueueDecl, QueueDecl]:
    dlq = dlq_name(name)
    used = queue(name, visibility=60, retention=FOUR_DAYS, receive_wait=20, dead_letter=dlq, **settings)
    return dead_letters(dlq, name), used


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
        resources += [*_transfer_queues(name), SubscriptionDecl(topic, name, filter=_FILTERS.get(consumer, {}))]
        components.append(Component(name.removesuffix(".fifo"), consumes=(name,)))
    return Topology(
        aws_name(f"{prefix}transfers"),
        (*resources, *transfer_alarms(prefix, topic)),
        tuple(components),
        {"ManagedBy": "postroad"},
    )


def _transfer_queues(name: str) -> tuple[QueueDecl, QueueDecl]:
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
        f"{prefix}{metric}",
        metric,
        topic,
        threshold,
        namespace="Postroad",
        comparison=">",
        periods=_FIVE_MINUTES,
        missing="breaching",
    )


VISIBLE = "ApproximateNumberOfMessagesVisible"
OLDEST = "ApproximateAgeOfOldestMessage"
_OLDEST_SECONDS = 300


def chat_topology(project: str, env: str) -> Topology:
    """The queues of a chat's notifications, named `{project}-{env}-…`."""
    base = _base(project, env)
    push, offline = f"{base}-push", f"{base}-offline"
    tags = {"Project": project, "Environment": env, "ManagedBy": "postroad"}
    return Topology(
        base,
        (
            *_pair(push, tags, visibility=60, purposes=("push-notifications", "push-notification-dlq")),
            *_pair(offline, tags, visibility=30, purposes=("offline-message-fanout", "offline-message-dlq")),
            TopicDecl(f"{base}-alerts"),
            *_alarms(base, "push"),
            *_alarms(base, "offline"),
        ),
        components=_components(base),
        tags=tags,
    )


def _base(project: str, env: str) -> str:
    base = f"{project}-{env}"
    given: dict[str, object] = {"project": project, "env": env}
    for part, value in given.items():
        if isinstance(value, str) and value:
            continue
        name = f"{base}-push-queue"
        why = "is empty" if value == "" else f"is {type(value).__name__}, not a text"
        message = f"{name!r} is not the name of a queue of its own: {part} {why}"
        raise refuse([Finding("name-invalid", "error", name, message, "Name the project and the environment.")])
    return base


def _pair(
    stem: str, tags: dict[str, str], *, visibility: int, purposes: tuple[str, str]
) -> tuple[QueueDecl, QueueDecl]:
    name, dlq = f"{stem}-queue", f"{stem}-dlq"
    kept = dead_letters(dlq, name, tags={**tags, "Name": dlq, "Purpose": purposes[1]})
    used = queue(
        name,
        tags={**tags, "Name": name, "Purpose": purposes[0]},
        visibility=visibility,
        retention=FOUR_DAYS,
        receive_wait=20,
        max_receives=3,
        dead_letter=dlq,
    )
    return kept, used


def _alarms(base: str, which: str) -> tuple[AlarmDecl, AlarmDecl]:
    alerts = f"{base}-alerts"
    return (
        AlarmDecl(f"{base}-sqs-{which}-dlq", VISIBLE, f"{base}-{which}-dlq", 1, notify=alerts),
        AlarmDecl(
            f"{base}-sqs-{which}-oldest",
            OLDEST,
            f"{base}-{which}-queue",
            _OLDEST_SECONDS,
            comparison=">",
            periods=3,
            notify=alerts,
        ),
    )


def _components(base: str) -> tuple[Component, ...]:
    queues, dlqs = (f"{base}-push-queue", f"{base}-offline-queue"), (f"{base}-push-dlq", f"{base}-offline-dlq")

    def component(name: str, **needs: Any) -> Component:
        return Component(name, role=role_name(base, name), **needs)

    return (
        component("realtime", sends=queues[1:]),
        component("workers", consumes=queues, sends=queues[:1]),
        component("operator", operates=dlqs),
        component("dashboard", observes=(*queues, *dlqs)),
    )
