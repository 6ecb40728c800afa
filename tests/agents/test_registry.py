from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.agents.conftest import Post

from postroad.agents import AgentEvent
from postroad.errors import (
    AgentDeleted,
    AgentExists,
    AgentNotFound,
    ConsentRequired,
    InvalidInput,
    InvalidName,
    SubscriptionNotFound,
)


def test_a_registered_agent_has_an_id_a_token_and_a_time(post: Post) -> None:
    made = post.agents.register()

    assert re.fullmatch(r"[0-9a-f]{32}", made.agent_id)
    assert made.agent_id[12] == "7"
    assert made.created_at == "2030-01-01T00:00:00.000Z"
    assert made.queue_url is None
    assert post.agents.authenticate(made.token) == made.agent_id


def test_only_the_hash_of_a_token_is_stored(file_post: Post, tmp_path: Path) -> None:
    made = file_post.agents.register("ann")

    file_post.backend.close()

    data = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert made.token.encode() not in data
    assert made.token.rpartition(".")[2].encode() not in data


@pytest.mark.parametrize("agent_id", ["", "a#b", "../x", "a" * 65, "\u0430", "a b", "a\n"])
def test_an_id_that_no_agent_may_have_is_refused(post: Post, agent_id: str) -> None:
    with pytest.raises(InvalidName) as refused:
        post.agents.register(agent_id)

    assert refused.value.field == "agentId"
    assert post.agents.list().items == []


def test_a_taken_id_is_refused(post: Post) -> None:
    first = post.agents.register("ann")

    with pytest.raises(AgentExists):
        post.agents.register("ann", order="total")

    assert post.agents.authenticate(first.token) == "ann"
    assert post.agents.get("ann").order == "producer"


@pytest.mark.parametrize("choice", [{"order": "newest"}, {"accept": "none"}, {"order": None}])
def test_an_unknown_order_or_accept_is_refused_by_name(post: Post, choice: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        post.agents.register("ann", **choice)  # type: ignore[arg-type]  # wrong on purpose

    assert refused.value.field == next(iter(choice))


def test_many_agents_are_registered_at_once(post: Post) -> None:
    made = post.agents.register_many(150, accept="all")

    assert len({agent.agent_id for agent in made}) == 150
    assert post.agents.get(made[149].agent_id).accept == "all"
    assert post.agents.authenticate(made[7].token) == made[7].agent_id


def test_agents_are_listed_page_by_page(post: Post) -> None:
    post.register(*"abcde")

    first = post.agents.list(limit=2)
    rest = post.agents.list(limit=3, cursor=first.next_cursor)

    assert [agent.agent_id for agent in [*first.items, *rest.items]] == [*"abcde"]
    assert rest.next_cursor is None


@pytest.mark.parametrize("limit", [0, 101, True, "1"])
def test_a_list_refuses_a_limit_out_of_range(post: Post, limit: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        post.agents.list(limit=limit)

    assert refused.value.field == "limit"


def test_a_rotated_token_overlaps_with_the_former_one(post: Post) -> None:
    former = post.agents.register("ann").token

    renewed = post.agents.rotate_token("ann", overlap=600)
    during = post.agents.authenticate(former)
    post.clock.advance(601)

    assert during == "ann"
    assert post.agents.authenticate(former) is None
    assert post.agents.authenticate(renewed) == "ann"


@pytest.mark.parametrize("token", ["", "pr_ann.short", "pr_nobody." + "x" * 43, "pr_ann." + "x" * 43, "Bearer"])
def test_a_token_that_is_nobodys_opens_nothing(post: Post, token: str) -> None:
    post.register("ann")

    assert post.agents.authenticate(token) is None


def test_subscribing_is_idempotent_and_keeps_the_first_time(post: Post) -> None:
    post.register("ann", "bob")

    first = post.agents.subscribe("ann", "bob")
    post.clock.advance(60)
    second = post.agents.subscribe("ann", "bob")

    [subscription] = post.agents.subscriptions("ann").items
    assert (first, second) == (True, False)
    assert subscription.created_at == "2030-01-01T00:00:00.000Z"
    assert (subscription.producer_id, subscription.subscriber_id, subscription.state) == ("bob", "ann", "active")
    assert [found.subscriber_id for found in post.agents.subscribers("bob").items] == ["ann"]


@pytest.mark.parametrize("pair", [("ann", "nobody"), ("nobody", "ann"), ("ann", "a#b"), ("", "ann")])
def test_subscribing_needs_both_sides(post: Post, pair: tuple[str, str]) -> None:
    post.register("ann")

    with pytest.raises(AgentNotFound):
        post.agents.subscribe(*pair)

    assert post.agents.subscriptions("ann").items == []


def test_without_validation_the_producer_may_come_later(post: Post) -> None:
    loose = post.configured(validate=False)
    post.register("ann")

    loose.agents.subscribe("ann", "later")
    with pytest.raises(AgentNotFound):
        post.agents.get("later")
    post.register("later")
    post.publish("later", 1)

    assert post.drain("ann") == [1]


def test_agents_may_listen_to_themselves_and_in_circles(post: Post) -> None:
    post.register("ann", "bob")
    post.agents.subscribe_many([("ann", "ann"), ("ann", "bob"), ("bob", "ann")])

    post.publish("ann", 1)

    assert post.drain("ann") == [1]
    assert post.drain("bob") == [1]


def test_a_producer_grants_or_is_open_to_all(post: Post) -> None:
    post.register("listener", "listed")
    post.register("open", accept="all")

    post.agents.check_consent("listener", "open")
    with pytest.raises(ConsentRequired):
        post.agents.check_consent("listener", "listed")
    post.agents.grant("listed", "listener")

    post.agents.check_consent("listener", "listed")


def test_revoking_ends_a_running_subscription(post: Post) -> None:
    post.register("ann", "bob")
    post.agents.grant("bob", "ann")
    post.agents.subscribe("ann", "bob")

    post.agents.revoke("bob", "ann")

    assert post.agents.subscriptions("ann").items == []
    with pytest.raises(ConsentRequired):
        post.agents.check_consent("ann", "bob")


def test_a_deleted_agent_leaves_a_tombstone_and_nothing_else(post: Post) -> None:
    token = post.agents.register("ann").token
    post.register("bob", "cat")
    post.agents.subscribe_many([("ann", "bob"), ("ann", "cat"), ("bob", "ann")])
    post.agents.grant("ann", "bob")
    post.agents.grant("bob", "ann")
    post.publish("bob", 1, 2)
    post.publish("ann", 3)

    deleted = post.agents.delete("ann")

    assert (deleted.discarded, deleted.subscriptions, deleted.subscribers) == (2, 2, 1)
    assert post.agents.authenticate(token) is None
    assert post.agents.subscribers("bob").items == []
    assert not any(post.agents.store.subscriptions.is_granted(*pair) for pair in (("ann", "bob"), ("bob", "ann")))
    assert post.drain("bob") == [3]
    with pytest.raises(AgentNotFound):
        post.agents.delete("ann")
    with pytest.raises(AgentDeleted):
        post.agents.register("ann")


def test_a_deleted_agent_publishes_nothing(post: Post) -> None:
    post.register("ann")
    post.agents.delete("ann")

    [result] = post.agents.publish([AgentEvent("ann", "any", {})])

    assert (result.ok, result.error) == (False, "agent_not_found")


@pytest.mark.parametrize("verb", ["pause", "resume", "replay"])
def test_what_concerns_a_subscription_needs_one(post: Post, verb: str) -> None:
    post.register("ann", "bob")

    with pytest.raises(SubscriptionNotFound):
        getattr(post.agents, verb)("ann", "bob")
