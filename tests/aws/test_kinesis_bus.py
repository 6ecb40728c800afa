"""The bus on Kinesis itself, with its positions and leases in DynamoDB."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.waiting import eventually

import postroad
from postroad.bus import BusConfig, KinesisEventBus
from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError
from postroad.journal.dynamodb import DynamoRecords

pytestmark = pytest.mark.aws
CONFIG = BusConfig(wait_time_seconds=5, poll_interval_seconds=0.01)


@postroad.event(name="tests.kinesis.aws:Placed")
class Placed:
    number: int


def note(numbers: list[int], event: Placed) -> None:
    numbers.append(event.number)


def test_a_broadcast_and_a_consumer_both_hear_what_is_published(
    aws: AwsConnection, ministack_url: str, unique: Callable[[str], str]
) -> None:
    table = unique("items")
    DynamoRecords(aws, table).init()
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}&table={table}") as backend:
        stream = backend.stream(unique("events"), shards=1)
        publisher, broadcast, worker = (
            KinesisEventBus(stream=stream, consumer=consumer, config=CONFIG) for consumer in (None, None, "workers")
        )
        heard: list[list[int]] = [[], []]
        for bus, numbers in zip((broadcast, worker), heard, strict=True):
            bus.subscribe(Placed, partial(note, numbers))
        publisher.publish(Placed(0))
        broadcast._queue.open()

        publisher.publish_many([Placed(1), Placed(2)])
        while len(heard[0]) < 2 and broadcast.receive_once():
            pass
        while len(heard[1]) < 3 and worker.receive_once():
            pass
        for bus in (publisher, broadcast, worker):
            bus.close()

        successor = KinesisEventBus(stream=stream, consumer="workers", config=BusConfig(wait_time_seconds=0))
        successor.subscribe(Placed, lambda event: None)

        assert heard == [[1, 2], [0, 1, 2]]
        assert successor.receive_once() == []
        successor.close()


def test_a_consumer_without_its_table_fails_when_it_starts_and_names_the_remedy(
    ministack_url: str, unique: Callable[[str], str]
) -> None:
    table = unique("nowhere")
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}&table={table}") as backend:
        with KinesisEventBus(stream=backend.stream(unique("events"), shards=1), consumer="workers") as bus:
            with pytest.raises(ConfigurationError, match=table) as caught:
                bus.start_receiver()

    assert "table" in (caught.value.remedy or "")


def test_a_consumer_whose_table_goes_says_so_until_it_is_back(
    aws: AwsConnection, ministack_url: str, unique: Callable[[str], str]
) -> None:
    events = DynamoRecords(aws, table := unique("items"))
    events.init()
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}&table={table}") as backend:
        numbers: list[int] = []
        config = BusConfig(wait_time_seconds=1, poll_interval_seconds=0.01, visibility_timeout_seconds=1)
        with KinesisEventBus(stream=backend.stream(unique("events"), shards=1), consumer="w", config=config) as bus:
            bus.subscribe(Placed, partial(note, numbers))
            bus.start_receiver()
            aws.dynamodb.delete_table(TableName=table)

            eventually(lambda: table in (bus.health().last_error or ""))
            bus.publish(Placed(1))
            events.init()

            eventually(lambda: numbers == [1] and bus.health().last_error is None)
