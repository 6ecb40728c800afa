"""Pause, resume and replay: order holds through all of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.agents.conftest import Post, body_of, n_of

from postroad.errors import InvalidEvent


@pytest.fixture(params=["producer", "total"])
def heard(request: pytest.FixtureRequest, post: Post) -> Post:
    """`cat` listens to `ann` and `bob`, in either order."""
    post.register("ann", "bob")
    post.register("cat", order=request.param)
    post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])
    return post


def test_a_paused_producer_is_withheld_and_others_flow(heard: Post) -> None:
    heard.publish("ann", 1)
    heard.agents.pause("cat", "ann")
    heard.publish("ann", 2)
    heard.publish("bob", 3)

    flowing = heard.drain("cat")
    states = {found.producer_id: found.state for found in heard.agents.subscriptions("cat").items}

    assert flowing == [3]
    assert states == {"ann": "paused", "bob": "active"}
    assert heard.agents.stats("cat").held == 2


def test_resuming_delivers_what_was_withheld_before_anything_newer(heard: Post) -> None:
    heard.agents.pause("cat", "ann")
    heard.publish("ann", 1, 2)
    looked = heard.take("cat")
    heard.publish("ann", 3)

    heard.agents.resume("cat", "ann")
    heard.publish("ann", 4)

    assert looked == []
    assert heard.drain("cat") == [1, 2, 3, 4]


def test_what_is_in_flight_when_it_is_paused_may_be_acked(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    [held] = heard.take("cat", 1)

    heard.agents.pause("cat", "ann")
    [acked] = heard.agents.queue("cat").ack([held])
    withheld = heard.take("cat")
    heard.agents.resume("cat", "ann")

    assert acked.ok
    assert withheld == []
    assert heard.drain("cat") == [2]


def test_what_comes_back_while_it_is_paused_stays_withheld(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    heard.take("cat", 1)
    heard.agents.pause("cat", "ann")

    heard.clock.advance(31)
    withheld = heard.take("cat")
    heard.agents.resume("cat", "ann")

    assert withheld == []
    assert [(n_of(delivery), delivery.receive_count) for delivery in heard.take("cat")] == [(1, 2), (2, 1)]


def test_unsubscribing_from_a_paused_producer_leaves_what_waits_deliverable(heard: Post) -> None:
    heard.agents.pause("cat", "ann")
    heard.publish("ann", 1)
    heard.take("cat")

    heard.agents.unsubscribe("cat", "ann")

    assert heard.drain("cat") == [1]


def test_a_replay_delivers_everything_again_before_anything_newer(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    heard.publish("bob", 9)
    heard.drain("cat")
    heard.publish("ann", 3)

    replayed = heard.agents.replay("cat", "ann")
    heard.publish("ann", 4)
    bodies = [body_of(delivery) for delivery in heard.take("cat")]

    assert replayed == 3
    assert [body["data"]["n"] for body in bodies] == [1, 2, 3, 4]
    assert [body.get("replay") for body in bodies] == [True, True, True, None]


def test_a_replay_begins_where_it_is_told(heard: Post) -> None:
    heard.publish("ann", 1, timestamp="2025-01-01T00:00:01Z")
    heard.publish("ann", 2, timestamp="2025-01-01T00:00:02Z")
    heard.publish("ann", 3, timestamp="2025-01-01T00:00:03Z")
    heard.drain("cat")

    by_text = heard.agents.replay("cat", "ann", since="2025-01-01T01:00:02+01:00")
    first = heard.drain("cat")
    by_time = heard.agents.replay("cat", "ann", since=datetime(2025, 1, 1, 0, 0, 3, tzinfo=UTC))

    assert (by_text, first) == (2, [2, 3])
    assert (by_time, heard.drain("cat")) == (1, [3])


def test_leases_of_a_replayed_pair_are_stale(heard: Post) -> None:
    heard.publish("ann", 1)
    held = heard.take("cat")

    heard.agents.replay("cat", "ann")

    assert not heard.agents.queue("cat").ack(held)[0].ok
    assert heard.drain("cat") == [1]


def test_a_replay_keeps_to_the_retention(heard: Post) -> None:
    brief = heard.configured(retention=60)
    brief.publish("ann", 1)
    heard.clock.advance(61)
    brief.publish("ann", 2)
    brief.drain("cat")

    assert brief.agents.replay("cat", "ann") == 1
    assert brief.drain("cat") == [2]
    heard.clock.advance(61)
    assert brief.agents.replay("cat", "ann") == 0


def test_a_replay_while_paused_waits_for_the_resumption(heard: Post) -> None:
    heard.publish("ann", 1)
    heard.drain("cat")
    heard.agents.pause("cat", "ann")

    heard.agents.replay("cat", "ann")
    withheld = heard.take("cat")
    heard.agents.resume("cat", "ann")

    assert withheld == []
    assert heard.drain("cat") == [1]


@pytest.mark.parametrize("since", ["yesterday", "2025-01-01T00:00:00", 5, None])
def test_a_replay_from_no_time_is_refused(heard: Post, since: str) -> None:
    heard.publish("ann", 1)
    heard.drain("cat")

    with pytest.raises(InvalidEvent) as refused:
        heard.agents.replay("cat", "ann", since=since)

    assert refused.value.field == "since"
    assert heard.drain("cat") == []
