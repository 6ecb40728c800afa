"""What the functions of agents open, once for each environment, and rows and queues without them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.aws.cloud import Cloud

from postroad.agents import release
from postroad.agents.aws.fanout import _shared
from postroad.agents.aws.rows import item_of, row_of
from postroad.agents.stream import StreamEvent
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError
from postroad.lambdas import opened_agents


def test_two_environments_in_one_process_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_URL", "aws://us-east-1?endpoint_url=http://127.0.0.1:9")
    first = opened_agents()
    monkeypatch.setenv("SUBSCRIBERS_TABLE", "others")
    second = opened_agents()
    monkeypatch.setenv("POSTROAD_URL", "aws://eu-central-1?endpoint_url=http://127.0.0.1:9")
    third = opened_agents()
    monkeypatch.setenv("POSTROAD_URL", "aws://us-east-1?endpoint_url=http://127.0.0.1:9")

    assert opened_agents() is second
    assert len({id(each) for each in (first, second, third)}) == 3


def test_without_a_url_the_functions_region_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_URL", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    assert opened_agents()._tables.client.meta.region_name == "eu-west-1"


def test_a_function_on_something_else_than_aws_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_URL", "memory://")

    with pytest.raises(ConfigurationError, match="is not AWS"):
        opened_agents()


def test_the_rows_of_one_event_share_what_it_says() -> None:
    event = StreamEvent("ann", "e", "x", 0, b'{"n":1}', "shard", "7", datetime(2030, 1, 1, tzinfo=UTC))
    items = [item_of(event, subscriber_id, 60) for subscriber_id in ("bob", "cat")]

    bob, cat = _shared(items)

    assert [bob, cat] == [row_of(item) for item in items]
    assert bob.data is cat.data
    assert bob.key is cat.key


@pytest.mark.aws
def test_opening_an_agents_queue_asks_sqs_for_nothing(village: Cloud) -> None:
    village.register("bob")
    events, requests = village.store._queues._calls.client.meta.events, list[str]()

    def count(event_name: str, **_: Any) -> None:
        requests.append(event_name)

    events.register("before-send.sqs", count, unique_id="opening")
    try:
        queue = village.agents.queue(village.id("bob"))
        opened = list(requests)
        traits = queue.traits
    finally:
        events.unregister("before-send.sqs", unique_id="opening")

    assert opened == []
    assert (traits.fifo, traits.max_receives) == (True, 5)


@pytest.mark.aws
def test_rows_can_be_released_through_an_object_that_sends(village: Cloud) -> None:
    village.register("ann", "bob")
    village.subscribe("bob", "ann")
    village.publish("ann", 1, 2)
    village.aggregate()

    class Lanes:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def send(self, recipient: Any, messages: Any) -> Any:
            self.sent += [recipient.agent_id for _ in messages]
            return [None] * len(messages)

    lanes = Lanes()
    store: Any = lanes
    result = release([row_of(row) for row in village.rows()], opened_agents().pairs, store, SYSTEM_CLOCK)

    assert (result.sent, lanes.sent) == (2, [village.id("bob")] * 2)
