"""Buses on SNS and EventBridge, and a backend's bus on AWS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint
from tests.bus.vocabulary import QUICK, Anything, Placed, Shipped
from tests.waiting import eventually

import postroad
from postroad import Backend, NonRetryable, QueueSpec, Retryable
from postroad.bus import EventBridgeEventBus, SNSEventBus
from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError, MessageTooLarge
from postroad.queues.markers import read_dead
from postroad.queues.sqs import SQSQueue, SQSQueues
from postroad.testing import FakeClock

pytestmark = pytest.mark.aws

WAITING = replace(QUICK, wait_time_seconds=1)


@pytest.fixture
def queue(aws: AwsConnection, unique: Callable[[str], str]) -> Iterator[SQSQueue]:
    queues = SQSQueues(aws)
    made = queues.create_queue(QueueSpec(unique("bus")))
    yield made
    queues.delete_queue(made.name)


@pytest.fixture
def topic_arn(aws: AwsConnection, unique: Callable[[str], str]) -> str:
    return aws.sns.create_topic(Name=unique("bus"))["TopicArn"]


@pytest.fixture
def backend(ministack_url: str) -> Iterator[Backend]:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        yield backend


def test_a_publish_whose_replies_are_lost_makes_no_more_calls_than_configured(scripted: Endpoint) -> None:
    scripted.on("PublishBatch", Answer(cut=True))
    topic = "arn:aws:sns:us-east-1:123456789012:orders"
    with postroad.connect(f"aws://us-east-1?endpoint_url={scripted.url}") as backend:
        with backend.bus(topic, config=replace(QUICK, publish_retries=2)) as bus:
            result = bus.publish(Placed())

    assert len(scripted.calls("PublishBatch")) == 3
    assert (result.ok, result.remote) == (False, "unknown")


def test_publishes_of_one_group_share_requests_on_a_fifo_topic(
    backend: Backend, aws: AwsConnection, unique: Callable[[str], str]
) -> None:
    numbers: list[int] = []
    with backend.bus(unique("orders"), "workers", fifo=True, config=WAITING) as bus:
        bus.subscribe(Placed, lambda event: numbers.append(event.number))
        requests: list[str] = []
        ground: Any = backend._installation
        client = ground._connection.once("sns")
        client.meta.events.register("before-call.sns", lambda model, **_: requests.append(model.name))
        results = bus.publish_many([Placed(number) for number in range(40)])
        while len(numbers) < 40:
            bus.receive_once()

    assert all(result.ok for result in results)
    assert requests.count("PublishBatch") <= 0.11 * 40
    assert numbers == list(range(40))


def test_an_event_goes_round_through_sns(aws: AwsConnection, topic_arn: str, queue: SQSQueue) -> None:
    seen: list[object] = []
    publisher = SNSEventBus(topic_arn=topic_arn, sns_client=aws.sns, sqs_client=aws.sqs, config=WAITING)
    receiver = SNSEventBus(
        topic_arn=topic_arn, queue_url=queue.url, sns_client=aws.sns, sqs_client=aws.sqs, config=WAITING
    )
    receiver.subscribe(Placed, seen.append)
    receiver.start_receiver()

    results = publisher.publish_many([Placed(1), Placed(2)])

    eventually(lambda: len(seen) == 2)
    publisher.close()
    receiver.close()
    assert all(result.ok for result in results)


@pytest.mark.parametrize("kind", ["sns", "eventbridge"])
def test_without_a_queue_a_bus_publishes_only(aws: AwsConnection, topic_arn: str, kind: str) -> None:
    bus: Any = (
        SNSEventBus(topic_arn=topic_arn, sns_client=aws.sns, sqs_client=aws.sqs, config=QUICK)
        if kind == "sns"
        else EventBridgeEventBus(events_client=aws.events, sqs_client=aws.sqs, config=QUICK)
    )

    assert bus.publish(Placed()).ok
    with pytest.raises(ConfigurationError, match="queue_url"):
        bus.start_receiver()
    bus.close()


def test_the_limit_of_sns_is_its_own(aws: AwsConnection, topic_arn: str) -> None:
    bus = SNSEventBus(topic_arn=topic_arn, sns_client=aws.sns, sqs_client=aws.sqs, config=QUICK)

    result = bus.publish(Anything("x" * 300_000))

    bus.close()
    assert isinstance(result.errors[0].error, MessageTooLarge)


def test_what_is_no_arn_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="topic_arn"):
        SNSEventBus(topic_arn="orders")


def test_an_event_goes_round_through_eventbridge_as_its_envelope(aws: AwsConnection, queue: SQSQueue) -> None:
    seen: list[object] = []
    given = {"events_client": aws.events, "sqs_client": aws.sqs, "source": f"shop-{queue.name}"}
    bus = EventBridgeEventBus(queue_url=queue.url, config=replace(WAITING, local_dispatch=False), **given)  # type: ignore[arg-type]  # a mapping of mixed values
    bus.subscribe(Placed, seen.append)
    bus.start_receiver()
    bus.stop_receiver()

    result = bus.publish(Placed(5))
    eventually(lambda: queue.stats().visible == 1)
    raw = aws.sqs.receive_message(QueueUrl=queue.url, VisibilityTimeout=0)["Messages"][0]["Body"]
    bus.start_receiver()

    eventually(lambda: seen == [Placed(5)])
    bus.close()
    outer = json.loads(raw)
    assert outer["detail-type"] == "tests.bus.vocabulary:Placed"
    assert outer["source"] == f"shop-{queue.name}"
    assert outer["detail"]["event_id"] == str(result.event_id)
    assert outer["detail"]["payload"] == {"number": 5}


def test_a_pattern_chooses_by_type_and_content() -> None:
    pattern = EventBridgeEventBus.pattern(event_types=[Placed], payload={"number": [1, 2]})

    assert pattern == {
        "source": ["postroad"],
        "detail-type": ["tests.bus.vocabulary:Placed"],
        "detail": {"payload": {"number": [1, 2]}},
    }


def test_a_backends_bus_broadcasts_on_aws(backend: Backend, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    seen: list[list[object]] = [[], []]
    buses = [backend.bus(topic, config=WAITING) for _ in seen]
    for bus, events in zip(buses, seen, strict=True):
        bus.subscribe(Placed, events.append)
        bus.start_receiver()

    result = buses[0].publish(Placed())

    eventually(lambda: seen == [[Placed()], [Placed()]])
    for bus in buses:
        bus.close()
    assert result.ok
    assert [name for name in backend.queues() if name.startswith(f"{topic}--p-")] == []
    assert backend.topic(topic).subscriptions() == []


def test_a_backends_group_shares_the_work_on_aws(backend: Backend, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    seen: list[Any] = []
    buses = [backend.bus(topic, "workers", config=WAITING) for _ in range(2)]
    for bus in buses:
        bus.subscribe(Placed, seen.append)
        bus.start_receiver()

    buses[0].publish_many([Placed(number) for number in range(20)])

    eventually(lambda: len(seen) >= 20)
    for bus in buses:
        bus.close()
    assert sorted(event.number for event in seen) == list(range(20))
    assert f"{topic}--workers" in backend.queues()


def test_an_orphan_on_aws_is_swept_by_another_bus_of_its_topic(
    ministack_url: str, unique: Callable[[str], str]
) -> None:
    topic, clock = unique("orders"), FakeClock()
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}", clock=clock) as backend:
        crashed, other = backend.bus(topic, config=WAITING), backend.bus(topic, config=WAITING)
        crashed._inlet.open()  # type: ignore[union-attr]  # a process that ends here never renews its tag
        before = [name for name in backend.queues() if name.startswith(f"{topic}--p-")]

        clock.advance(61)
        other.subscribe(Shipped, lambda _: None)
        other.start_receiver()

        after = [name for name in backend.queues() if name.startswith(f"{topic}--p-")]
        assert len(before) == len(after) == 1
        assert before != after


def test_what_a_group_does_not_handle_is_told_with_the_remedy_once_a_minute(
    backend: Backend, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("orders")
    config = replace(WAITING, unhandled="dead_letter")
    with backend.bus(name, "billing", config=config) as bus:
        bus.subscribe(Shipped, lambda _: None)
        bus.publish(Placed())
        bus.publish(Placed())
        bus.start_receiver()

        eventually(lambda: bus.health().dead_lettered == 2)

    messages: list[Any] = [record.msg for record in caplog.records if record.name == "postroad.bus"]
    told = [line for line in messages if line["event"] == "bus_unhandled"]
    [remedy] = [line["remedy"] for line in told if "remedy" in line]
    assert len(told) == 2
    assert f"postroad bus group set {name} billing --types" in remedy


def test_the_queue_of_a_group_allows_what_its_handlers_need_and_later_buses_do_not_change_it(
    backend: Backend, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    first, later = (postroad.Bus(topic, group="billing", config=WAITING) for _ in range(2))
    first.on(Placed, max_attempts=7)(lambda event: None)
    later.on(Placed, max_attempts=9)(lambda event: None)

    first.bind(backend)
    made = backend.queue_spec(f"{topic}--billing").max_receives
    later.bind(backend)

    with pytest.raises(ConfigurationError, match=r"max_attempts: 9 .* which is 7"):
        later.start_receiver()
    first.start_receiver()
    assert (made, backend.queue_spec(f"{topic}--billing").max_receives) == (7, 7)


def test_handlers_say_whether_their_events_come_again(backend: Backend, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    calls: list[int] = []
    bus = backend.bus(topic, "billing", config=WAITING)

    @bus.on(Placed)
    async def bill(event: Placed) -> None:
        calls.append(event.number)
        if event.number == 1:
            raise NonRetryable("no such order")
        if calls.count(event.number) == 1:
            raise Retryable("not yet", after=0)

    bus.publish_many([Placed(1), Placed(2)])
    bus.start_receiver()

    eventually(lambda: (bus.health().handled, bus.health().dead_lettered) == (1, 1))
    (letter,) = backend.queue(f"{topic}--billing--dead").peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert marker.reason == "not_retryable"
    assert sorted(calls) == [1, 2, 2]


def test_a_loop_over_events_acks_each_when_it_asks_for_the_next(backend: Backend, unique: Callable[[str], str]) -> None:
    topic = unique("orders")

    async def main() -> set[int]:
        seen: set[int] = set()
        bus = backend.bus(topic, "billing", config=WAITING)
        async with bus:
            await bus.apublish_many([Placed(number) for number in range(3)])
            async for event in bus.events(Placed):
                seen.add(event.number)
                if len(seen) == 3:
                    break
        return seen

    assert asyncio.run(main()) == {0, 1, 2}
    eventually(lambda: backend.queue(f"{topic}--billing").stats().visible == 1)
