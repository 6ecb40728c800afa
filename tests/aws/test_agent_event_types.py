"""Subscriptions to some event types on emulated AWS."""

from __future__ import annotations

import json

import pytest
from tests.aws.cloud import Cloud

from postroad.agents import AgentEvent

pytestmark = pytest.mark.aws


@pytest.fixture
def cloud(village: Cloud) -> Cloud:
    return village


def test_the_aggregator_writes_rows_of_the_subscribed_types_only(cloud: Cloud) -> None:
    cloud.register("ann", "bob", "cat")
    bob, cat, ann = map(cloud.id, ("bob", "cat", "ann"))
    new = cloud.agents.subscribe(bob, ann, event_types=["order.*", "paid"])
    cloud.agents.subscribe(cat, ann)

    cloud.agents.publish([AgentEvent(ann, each, {}) for each in ("order.placed", "orders", "paid", "sent")])
    cloud.aggregate()
    cloud.release()

    types = [row["eventType"]["S"] for row in cloud.rows() if row["subscriberId"]["S"] == bob]
    assert sorted(types) == ["order.placed", "paid"]
    assert sum(row["subscriberId"]["S"] == cat for row in cloud.rows()) == 4
    assert new is True
    assert json.loads(cloud.take("bob")[0].body)["eventType"] == "order.placed"


def test_types_are_changed_and_removed_one_by_one_and_together(cloud: Cloud) -> None:
    cloud.register("ann", "bob", "cat")
    bob, cat, ann = map(cloud.id, ("bob", "cat", "ann"))

    def stored() -> list[tuple[str, ...] | None]:
        return [each.event_types for each in cloud.agents.subscribers(ann).items]

    cloud.agents.subscribe(bob, ann, event_types=["paid"])
    [first] = cloud.agents.subscriptions(bob).items
    again = cloud.agents.subscribe(bob, ann, event_types=["sent", "paid"])
    alone = stored()
    added = cloud.agents.subscribe_many([(bob, ann), (cat, ann)], event_types=["paid"])
    together = stored()
    cloud.agents.subscribe(bob, ann)
    cloud.agents.subscribe_many([(bob, ann), (cat, ann)])

    assert (again, alone) == (False, [("sent", "paid")])
    assert (added, together) == (1, [("paid",), ("paid",)])
    assert stored() == [None, None]
    assert cloud.agents.subscribers(ann).items[0].created_at == first.created_at
