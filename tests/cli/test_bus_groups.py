"""`postroad bus group list|show|create|set`: the groups of a topic, and the types that each receives."""

from __future__ import annotations

import pytest
from tests.cli.terminal import Postroad

BILLING = {"group": "billing", "queue": "orders--billing", "types": "all", "waiting": 0}


def test_a_group_that_is_created_keeps_events_before_its_service_starts(postroad: Postroad) -> None:
    created = postroad("bus", "group", "create", "orders", "billing", "--json")
    postroad("bus", "publish", "orders", "orders.placed", "{}")
    shown = postroad("bus", "group", "show", "orders", "billing", "--json")

    assert (created.code, created.document) == (0, BILLING)
    assert shown.document == BILLING | {"waiting": 1}


def test_a_group_receives_only_the_types_that_it_was_created_with(postroad: Postroad) -> None:
    words = ("bus", "group", "create", "orders", "billing", "--types", "orders.placed, orders.paid")
    created = postroad(*words, "--json")
    for event_type in ("orders.placed", "orders.shipped"):
        postroad("bus", "publish", "orders", event_type, "{}")
    listed = postroad("bus", "group", "list", "orders", "--json")

    types = ["orders.paid", "orders.placed"]
    assert created.document == BILLING | {"types": types}
    assert listed.document == {"items": [BILLING | {"types": types, "waiting": 1}]}


def test_types_are_changed_from_now_on_and_what_waits_stays(postroad: Postroad) -> None:
    postroad("bus", "group", "create", "orders", "billing")
    postroad("bus", "publish", "orders", "orders.placed", "{}")

    narrow = postroad("bus", "group", "set", "orders", "billing", "--types", "orders.paid", "--json")
    postroad("bus", "publish", "orders", "orders.placed", "{}")
    wide = postroad("bus", "group", "set", "orders", "billing", "--types", "all", "--json")

    assert narrow.document == BILLING | {"types": ["orders.paid"], "waiting": 1}
    assert wide.document == BILLING | {"waiting": 1}


def test_groups_of_a_fifo_topic_are_listed_by_name_without_other_queues(postroad: Postroad) -> None:
    for group in ("shipping", "billing"):
        postroad("bus", "group", "create", "orders", group, "--fifo")

    listed = postroad("bus", "group", "list", "orders.fifo", "--json")

    assert [(each["group"], each["queue"]) for each in listed.document["items"]] == [
        ("billing", "orders--billing.fifo"),
        ("shipping", "orders--shipping.fifo"),
    ]


@pytest.mark.parametrize("verb", [("show",), ("set", "--types", "all")], ids=lambda words: words[0])
def test_a_group_that_is_not_there_is_exit_2_with_the_nearest_name(postroad: Postroad, verb: tuple[str, ...]) -> None:
    postroad("bus", "group", "create", "orders", "billing")

    outcome = postroad("bus", "group", verb[0], "orders", "biling", *verb[1:])

    assert outcome.code == 2
    assert "billing" in outcome.err
    assert "postroad bus group create orders biling" in outcome.err


@pytest.mark.parametrize("types", ["", " , "])
def test_no_types_at_all_are_refused(postroad: Postroad, types: str) -> None:
    postroad("bus", "group", "create", "orders", "billing")

    outcome = postroad("bus", "group", "set", "orders", "billing", "--types", types)

    assert outcome.code == 2
    assert "types: is empty" in outcome.err
    assert postroad("bus", "group", "show", "orders", "billing", "--json").document == BILLING


def test_the_receives_of_a_group_are_given_at_its_creation_and_changed_later(postroad: Postroad) -> None:
    def receives() -> object:
        return postroad("queue", "show", "orders--billing", "--json").document["settings"]["max_receives"]

    postroad("bus", "group", "create", "orders", "billing", "--max-receives", "5")
    before = receives()
    changed = postroad("bus", "group", "set", "orders", "billing", "--max-receives", "7", "--json")

    assert (before, receives()) == (5, 7)
    assert (changed.code, changed.document) == (0, BILLING)


def test_nothing_to_change_is_refused(postroad: Postroad) -> None:
    postroad("bus", "group", "create", "orders", "billing")

    outcome = postroad("bus", "group", "set", "orders", "billing")

    assert outcome.code == 2
    assert "--max-receives" in outcome.err
