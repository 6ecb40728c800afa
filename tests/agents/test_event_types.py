"""Subscriptions to some types of events only."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.agents.conftest import Post, body_of

from postroad.agents import AgentEvent
from postroad.agents.sqlite.tables import SCHEMA
from postroad.errors import InvalidInput
from postroad.wiring import connect


def publish(post: Post, *types: str, **options: Any) -> None:
    results = post.agents.publish([AgentEvent("ann", each, {}, **options) for each in types])
    assert all(result.ok for result in results), results
    post.move()


def received(post: Post, agent_id: str = "bob") -> list[str]:
    types: list[str] = []
    while taken := post.take(agent_id):
        types += [body_of(delivery)["eventType"] for delivery in taken]
        post.agents.queue(agent_id).ack(taken)
    return types


@pytest.fixture
def heard(post: Post) -> Post:
    post.register("ann", "bob", "cat")
    post.agents.subscribe("cat", "ann")
    return post


def test_exact_types_and_prefixes_are_delivered_in_order_and_nothing_else(heard: Post) -> None:
    heard.agents.subscribe("bob", "ann", event_types=["order.*", "paid"])

    publish(
        heard, "order.placed", "order", "orders.placed", "paid", "paid.late", "order.item.added", "ORDER.x", "order."
    )

    assert received(heard) == ["order.placed", "paid", "order.item.added", "order."]
    assert len(received(heard, "cat")) == 8


def test_no_row_is_written_for_other_types(heard: Post) -> None:
    heard.agents.unsubscribe("cat", "ann")
    heard.agents.subscribe("bob", "ann", event_types=["paid"])
    heard.agents.publish([AgentEvent("ann", each, {}) for each in ("placed", "paid", "sent")])

    stats = heard.runner.run_once()

    assert (stats.read, stats.written) == (3, 1)
    assert heard.agents.replay("bob", "ann") == 1


def test_held_back_rows_are_chosen_by_type_too(heard: Post) -> None:
    slow = heard.configured(dispatch_delay=10)
    slow.agents.subscribe("bob", "ann", event_types=["paid"])
    publish(slow, "placed", "paid")

    slow.clock.advance(11)
    slow.move()

    assert received(slow) == ["paid"]


def test_an_event_published_again_is_chosen_by_the_type_it_had_first(heard: Post) -> None:
    publish(heard, "placed", event_id="e-1")
    heard.agents.subscribe("bob", "ann", event_types=["paid"])

    publish(heard, "paid", event_id="e-1")

    assert received(heard) == []


def test_a_subscription_has_the_types_that_were_given_last_and_keeps_its_time(heard: Post) -> None:
    new = heard.agents.subscribe("bob", "ann", event_types=["placed", "paid", "placed"])
    [first] = heard.agents.subscriptions("bob").items
    heard.clock.advance(60)

    again = heard.agents.subscribe("bob", "ann", event_types=("paid",))
    [second] = heard.agents.subscribers("ann", cursor="ann").items[:1]
    publish(heard, "placed", "paid")
    narrowed = received(heard)
    heard.agents.subscribe("bob", "ann")
    publish(heard, "placed", "paid")

    assert (new, again) == (True, False)
    assert first.event_types == ("placed", "paid")
    assert (second.subscriber_id, second.event_types, second.created_at) == ("bob", ("paid",), first.created_at)
    assert (narrowed, received(heard)) == (["paid"], ["placed", "paid"])
    assert heard.agents.get("bob").subscriptions[0].event_types is None


def test_many_pairs_get_the_same_types_at_once(heard: Post) -> None:
    added = heard.agents.subscribe_many([("bob", "ann"), ("cat", "ann")], event_types=["paid"])

    publish(heard, "placed", "paid")

    assert added == 1
    assert received(heard) == received(heard, "cat") == ["paid"]


def test_a_pause_keeps_the_types(heard: Post) -> None:
    heard.agents.subscribe("bob", "ann", event_types=["paid"])
    heard.agents.pause("bob", "ann")
    publish(heard, "placed", "paid")

    heard.agents.resume("bob", "ann")

    assert received(heard) == ["paid"]


BAD = [
    ([], "event_types"),
    ([f"t{n}" for n in range(21)], "event_types"),
    ("paid", "event_types"),
    (7, "event_types"),
    ([""], "event_types[0]"),
    (["paid", 7], "event_types[1]"),
    (["p" * 257], "event_types[0]"),
    (["pa\nid"], "event_types[0]"),
    (["*"], "event_types[0]"),
    ([".*"], "event_types[0]"),
    (["order*"], "event_types[0]"),
    (["*.placed"], "event_types[0]"),
    (["order.**"], "event_types[0]"),
]


@pytest.mark.parametrize(("event_types", "field"), BAD)
def test_types_that_are_none_are_refused_by_name_and_change_nothing(heard: Post, event_types: Any, field: str) -> None:
    heard.agents.subscribe("bob", "ann", event_types=["paid"])

    with pytest.raises(InvalidInput) as refused:
        heard.agents.subscribe("bob", "ann", event_types=event_types)

    assert refused.value.field == field
    assert "order.*" in refused.value.remedy
    assert heard.agents.subscriptions("bob").items[0].event_types == ("paid",)


def test_twenty_types_are_accepted(heard: Post) -> None:
    heard.agents.subscribe("bob", "ann", event_types=[f"t{n}" for n in range(20)])

    publish(heard, "t19", "t20")

    assert received(heard) == ["t19"]


def test_a_file_of_the_version_before_keeps_its_subscriptions(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with connect(f"sqlite:///{path}") as backend:
        backend.queues()
    old = apsw.Connection(str(path))
    old.execute("BEGIN")
    old.execute(SCHEMA.steps[0])
    old.execute("INSERT INTO part (name, version, boot) VALUES ('agents', 1, '')")
    old.execute("INSERT INTO agent (id, state, created_ms, total, open) VALUES ('ann', 'active', 1, 0, 0)")
    old.execute("INSERT INTO agent (id, state, created_ms, total, open) VALUES ('bob', 'active', 1, 0, 0)")
    old.execute("INSERT INTO agent_pair (producer, subscriber, created_us, after) VALUES (1, 2, 1, 0)")
    old.execute("COMMIT")
    old.close()

    with connect(f"sqlite:///{path}") as backend:
        agents = backend.agents()
        before = agents.subscriptions("bob").items
        agents.publish([AgentEvent("ann", "placed", {})])
        agents.runner().run_once()
        agents.subscribe("bob", "ann", event_types=["paid"])
        waiting = agents.stats("bob").visible

    assert [(each.producer_id, each.event_types) for each in before] == [("ann", None)]
    assert waiting == 1
    other = sqlite3.connect(path)
    assert other.execute("SELECT eventTypes FROM Subscribers").fetchall() == [('["paid"]',)]
    other.close()
