"""Arguments that cannot work: refused by name, before anything is made, stopped or sent."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed
from tests.waiting import eventually

from postroad import Backend, Queue
from postroad.bus import EventBridgeEventBus, SQSEventBus
from postroad.bus.tail import tail
from postroad.errors import InvalidInput, InvalidName

ARN = "arn:aws:sqs:eu-central-1:123456789012:orders"


@pytest.mark.parametrize("timeout", [None, "soon", -1, math.nan, True])
def test_a_stop_that_is_given_no_time_is_refused_and_the_receiver_goes_on(
    make_bus: MakeBus, queue: Queue, timeout: Any
) -> None:
    seen: list[object] = []
    bus = make_bus(queue)
    bus.subscribe(Placed, seen.append)
    bus.start_receiver()

    with pytest.raises(InvalidInput, match="timeout"):
        bus.stop_receiver(timeout=timeout)

    make_bus(queue).publish(Placed())
    eventually(lambda: seen)
    assert bus.health().running


def test_a_stop_may_take_as_long_as_it_needs(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    bus.start_receiver()

    bus.stop_receiver(timeout=math.inf)

    assert not bus.health().running


@pytest.mark.parametrize(("topic", "group"), [("x" * 70, None), ("orders", "g" * 70), ("x" * 76, "all")])
def test_a_name_that_would_be_too_long_leaves_no_topic_behind(backend: Backend, topic: str, group: str | None) -> None:
    with pytest.raises(InvalidName):
        backend.bus(topic, group, config=QUICK)
    with pytest.raises(InvalidName):
        next(tail(backend, topic, group))

    assert (backend.topics(), backend.queues()) == ([], [])


def test_a_topic_that_cannot_have_an_archive_is_not_made(backend: Backend) -> None:
    with pytest.raises(InvalidName):
        backend.archive("x" * 70)

    assert (backend.topics(), backend.queues()) == ([], [])


@pytest.mark.parametrize("event_types", [Placed, "Placed", [5], 5])
def test_event_types_are_classes(backend: Backend, event_types: Any) -> None:
    with pytest.raises(InvalidInput, match="event_types"):
        backend.bus("orders", event_types=event_types)

    assert backend.topics() == []


@pytest.mark.parametrize("arn", ["", "*", None, "arn:aws:sqs:*:*:agent-*", "arn:aws:sns:eu-central-1:1:orders"])
def test_a_policy_is_about_one_queue(arn: Any) -> None:
    with pytest.raises(InvalidInput, match="queue_arn"):
        SQSEventBus.iam_policy(arn)
    with pytest.raises(InvalidInput, match="dead_letter_arn"):
        SQSEventBus.iam_policy(ARN, dead_letter_arn=arn or "")


@pytest.mark.parametrize("values", [5, "abc", [], {"a": 1}])
def test_a_pattern_chooses_among_values(values: Any) -> None:
    with pytest.raises(InvalidInput, match=r"payload\.number"):
        EventBridgeEventBus.pattern(payload={"number": values})
