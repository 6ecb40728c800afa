"""A topology with one resource of each kind that needs no function."""

from __future__ import annotations

from postroad.queues import QueueSpec
from postroad.topology import (
    AlarmDecl,
    BucketDecl,
    BusDecl,
    IndexDecl,
    QueueDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    SubscriptionDecl,
    TableDecl,
    TopicDecl,
    Topology,
)

VISIBLE = "ApproximateNumberOfMessagesVisible"
PLACED = {"detail-type": ["placed"]}


def table(mark: str, *more: IndexDecl, ttl: str | None = "expires") -> TableDecl:
    indexes = (IndexDecl("by-kind", "kind", "pk"), *more)
    return TableDecl(f"{mark}-items", "pk", "sk", indexes, ttl, "NEW_IMAGE")


def rule(mark: str, *, pattern: dict[str, list[str]] = PLACED, max_attempts: int = 3) -> RuleDecl:
    return RuleDecl(
        f"{mark}-rule",
        f"{mark}-bus",
        f"{mark}-orders",
        "target",
        pattern=pattern,
        dead_letter=f"{mark}-dead",
        max_attempts=max_attempts,
    )


def orders(mark: str, *, team: str = "shop", encryption: str = "sqs") -> QueueDecl:
    return QueueDecl(QueueSpec(f"{mark}-orders", dead_letter=f"{mark}-dead"), encryption, {"Team": team})


def alarm(mark: str, *, threshold: int = 1) -> AlarmDecl:
    return AlarmDecl(f"{mark}-alarm", VISIBLE, f"{mark}-dead", threshold, notify=f"{mark}-news")


def shop(mark: str, *changed: Resource) -> Topology:
    """Everything under names that begin with the mark; what is changed stands in for what has its kind and name."""
    resources: list[Resource] = [
        QueueDecl(QueueSpec(f"{mark}-dead", retention=1_209_600)),
        orders(mark),
        TopicDecl(f"{mark}-news"),
        SubscriptionDecl(f"{mark}-news", f"{mark}-orders", filter={"kind": ("a", "b")}),
        StreamDecl(f"{mark}-clicks", shards=1),
        table(mark),
        BucketDecl(f"{mark}-blobs", expire_days=30),
        BusDecl(f"{mark}-bus"),
        rule(mark),
        alarm(mark),
    ]
    others = {(each.kind, each.name): each for each in changed}
    return Topology(mark, tuple(others.get((each.kind, each.name), each) for each in resources))
