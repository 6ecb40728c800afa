"""Templates of queues with their dead letters: agents' buses, transfers and chat notifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from postroad.errors import InvalidName
from postroad.queues import MAX_RETENTION, QueueSpec
from postroad.topology.declarations import AlarmDecl, Component, QueueDecl, Resource, SubscriptionDecl, TopicDecl
from postroad.topology.names import aws_name, name_finding, role_name
from postroad.topology.topology import Finding, Topology, refuse

FOUR_DAYS = 345_600


def queue(name: str, *, tags: Mapping[str, str] | None = None, **settings: Any) -> QueueDecl:
    """Return a queue, or raise `TopologyError` if AWS does not accept its name."""
    return declared(lambda name: QueueSpec(name, fifo=name.endswith(".fifo"), **settings), name, tags=tags)


def declared(spec: Callable[[str], QueueSpec], name: str, *, tags: Mapping[str, str] | None = None) -> QueueDecl:
    """Return the queue that a package declares, or raise `TopologyError` if AWS does not accept its name."""
    try:
        return QueueDecl(spec(name), tags=dict(tags or {}))
    except InvalidName as error:
        finding = name_finding("queue", name) or Finding("name-invalid", "error", name, str(error), error.remedy)
        raise refuse([finding]) from error


def dead_letters(name: str, *sources: str, tags: Mapping[str, str] | None = None, **settings: Any) -> QueueDecl:
    """Return a dead-letter queue that keeps messages for 14 days, for these sources or, without any, for all."""
    allowed: Any = sources or "all"
    return queue(name, tags=tags, retention=MAX_RETENTION, redrive_allow=allowed, **settings)


def _with_dead_letters(name: str, **settings: Any) -> tuple[QueueDecl, QueueDecl]:
    used = queue(name, visibility=60, retention=FOUR_DAYS, dead_letter=dlq_name(name), **settings)
    return dead_letters(dlq_name(name), name), used


def dlq_name(name: str) -> str:
    """Return the name of the dead letters of a queue: 'orders-dlq.fifo' for 'orders.fifo'."""
    stem = name.removesuffix(".fifo")
    return f"{stem}-dlq{name[len(stem) :]}"


def bus_topology(prefix: str = "") -> Topology:
    """Return the queues of agents' buses; every name begins with `prefix`.

    Args:
        prefix: The beginning of each name; none by default.

    Example:
        bus_topology("prod-")
    """
    ordered = [aws_name(f"{prefix}{name}", fifo=True) for name in ("agent-control", "agent-state")]
    names = (*ordered, aws_name(f"{prefix}agent-telemetry"))
    settings = {name: {"content_dedup": True, "dedup_scope": "group"} if name in ordered else {} for name in names}
    resources = [each for name in names for each in _with_dead_letters(name, receive_wait=20, **settings[name])]
    components = (
        Component(aws_name(f"{prefix}agent"), sends=names, consumes=names),
        Component(aws_name(f"{prefix}agent-operator"), operates=tuple(dlq_name(name) for name in names)),
    )
    return Topology(aws_name(f"{prefix}bus"), tuple(resources), components, tags={"ManagedBy": "postroad"})


_FILTERS = {"gateway.usdc": {"EventType": ("events.transfers.submitted.usdc",)}}
_FIVE_MINUTES = 5


def transfers_topology(prefix: str = "") -> Topology:
    """Return the topic and queues of transfers, and the alarms of an outbox; every name begins with `prefix`.

    Args:
        prefix: The beginning of each name; none by default.

    Example:
        transfers_topology("prod-")
    """
    topic = aws_name(f"{prefix}events.transfers", fifo=True)
    resources: list[Resource] = [TopicDecl(topic, fifo=True)]
    role = role_name(aws_name(f"{prefix}producer")) if prefix else None
    components = [Component("producer", publishes=(topic,), role=role)]
    for consumer in ("gateway.usdc", "ledger.postings", "projections.timeline"):
        name = aws_name(f"{prefix}{consumer}", fifo=True)
        resources += _with_dead_letters(name, max_receives=5)
        resources.append(SubscriptionDecl(topic, name, filter=_FILTERS.get(consumer, {})))
        components.append(Component(name.removesuffix(".fifo"), consumes=(name,)))
    return Topology(
        aws_name(f"{prefix}transfers"),
        (
            *resources,
            # The four of a transactional outbox and its consumers, named after their metrics.
            _alarm(prefix, "event_outbox_backlog", topic, 5_000),
            _alarm(prefix, "event_publish_lag_seconds", topic, 60),
            _alarm(prefix, "event_consumer_lag_seconds", topic, 300),
            AlarmDecl(f"{prefix}dead_letter_count", "dead_letter_count", topic, 1, namespace="Postroad"),
        ),
        tuple(components),
        {"ManagedBy": "postroad"},
    )


def _alarm(prefix: str, metric: str, topic: str, threshold: int) -> AlarmDecl:
    # A program that reports nothing is dead, hangs, or cannot reach its database.
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
    """Return the queues of chat notifications, with their dead letters and alarms, named `{project}-{env}-…`.

    Args:
        project: The name of the project.
        env: The name of the environment, such as prod.

    Raises:
        TopologyError: A name is empty, or AWS does not accept it.

    Example:
        chat_topology("rtchat", "prod")
    """
    base = f"{project}-{env}"
    given: dict[str, object] = {"project": project, "env": env}
    for part, value in given.items():
        if not isinstance(value, str) or not value:
            name = f"{base}-push-queue"
            why = "is empty" if value == "" else f"is {type(value).__name__}, not a text"
            message = f"{name!r} is not the name of a queue of its own: {part} {why}"
            raise refuse([Finding("name-invalid", "error", name, message, "Name the project and the environment.")])
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
