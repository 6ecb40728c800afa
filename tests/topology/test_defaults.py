"""What a declaration says when nothing is said."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from postroad.queues import QueueSpec
from postroad.topology import (
    AlarmDecl,
    BucketDecl,
    Component,
    FunctionDecl,
    IndexDecl,
    QueueDecl,
    RuleDecl,
    StreamDecl,
    SubscriptionDecl,
    TableDecl,
    TopicDecl,
    TriggerDecl,
)

DECLARED: list[tuple[Any, dict[str, Any]]] = [
    (QueueDecl(QueueSpec("q")), {"encryption": "sqs", "tags": {}}),
    (TopicDecl("t"), {"fifo": False, "content_dedup": False, "tags": {}}),
    (SubscriptionDecl("t", "q"), {"filter": {}, "raw": True}),
    (StreamDecl("s"), {"shards": 1, "retention_hours": 24}),
    (TableDecl("t", "pk"), {"range_key": None, "indexes": (), "ttl_attribute": None, "stream": None}),
    (IndexDecl("i", "pk"), {"range_key": None, "projection": "ALL"}),
    (BucketDecl("b"), {"expire_days": None}),
    (
        RuleDecl("r", "b", "q", "t"),
        {
            "pattern": None,
            "schedule": None,
            "dead_letter": None,
            "max_attempts": 3,
            "max_event_age": 3600,
        },
    ),
    (
        FunctionDecl("f", "m.handler", "c"),
        {
            "timeout": 30,
            "memory": 256,
            "environment": {},
            "triggers": (),
            "on_failure": None,
        },
    ),
    (TriggerDecl("q"), {"batch_size": 10, "max_attempts": 5, "bisect": True, "report_item_failures": True}),
    (
        AlarmDecl("a", "m", "q", 1),
        {
            "namespace": "AWS/SQS",
            "statistic": "Maximum",
            "comparison": ">=",
            "period": 60,
            "periods": 1,
            "missing": "notBreaching",
            "notify": None,
        },
    ),
    (
        Component("c"),
        {
            **dict.fromkeys(("sends", "consumes", "publishes", "puts", "reads", "writes", "operates", "observes"), ()),
            "trust": "ecs-tasks.amazonaws.com",
        },
    ),
]


@pytest.mark.parametrize(("declared", "meant"), DECLARED, ids=[type(each).__name__ for each, _ in DECLARED])
def test_a_declaration_that_says_no_more_means_this(declared: Any, meant: dict[str, Any]) -> None:
    said = asdict(declared)

    assert {name: said[name] for name in meant} == meant
