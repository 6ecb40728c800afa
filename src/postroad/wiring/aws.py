"""AWS as a ground: SQS, SNS or EventBridge, Kinesis, DynamoDB and S3 in one region."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from postroad.blobs import Blobs
from postroad.blobs.s3 import S3Blobs
from postroad.clock import Clock
from postroad.connections.aws import AwsConnection
from postroad.errors import NotSupported
from postroad.items import Items
from postroad.items.dynamodb import DynamoItems
from postroad.journal import Journal
from postroad.queues import Queue, QueueSpec
from postroad.queues.sqs import SQSQueues, SQSTags
from postroad.settings import default_stage
from postroad.streams import Stream
from postroad.streams.kinesis import KinesisStreams
from postroad.topics import Topic
from postroad.topics.eventbridge import EventBridgeTopics
from postroad.topics.sns import SNSTopics
from postroad.wiring.url import Address

if TYPE_CHECKING:
    from postroad.bus.stores import QueueTags


class AwsGround:
    """Everything in one AWS account and region."""

    kind = "aws"

    def __init__(self, address: Address, *, clock: Clock) -> None:
        options = address.options
        self._connection = AwsConnection(
            address.place or None,
            endpoint_url=options.get("endpoint_url"),
            stage=options.get("stage") or default_stage(),
            bucket=options.get("bucket"),
            table=options.get("table"),
        )
        self.url = f"aws://{self._connection.region}"
        self.stage = self._connection.stage
        self.stage_prefix = f"{self.stage}-"
        self._queues = SQSQueues(self._connection, clock=clock)
        self._sns = SNSTopics(self._connection, self._queues)
        self._event_buses = EventBridgeTopics(self._connection, self._queues)
        self._items = DynamoItems(self._connection)
        self._streams = KinesisStreams(self._connection, self._items, clock)
        self._blobs = S3Blobs(self._connection, clock=clock) if self._connection.bucket else None

    def create_queue(self, spec: QueueSpec) -> Queue:
        return self._queues.create_queue(spec)

    def update_queue(self, spec: QueueSpec) -> Queue:
        return self._queues.update_queue(spec)

    def delete_queue(self, name: str) -> None:
        self._queues.delete_queue(name)

    def queue(self, name: str) -> Queue:
        return self._queues.queue(name)

    def queue_spec(self, name: str) -> QueueSpec:
        return self._queues.queue_spec(name)

    def queues(self) -> list[str]:
        return self._queues.queues()

    def topic(self, name: str, *, fifo: bool) -> Topic:
        """An SNS topic by name or ARN; an event bus by its ARN."""
        if name.startswith("arn:") and ":events:" in name:
            return self._event_buses.topic(name, fifo=fifo)
        return self._sns.topic(name, fifo=fifo)

    def topics(self) -> list[str]:
        return self._sns.topics()

    def stream(self, name: str, *, shards: int, retention: float) -> Stream:
        return self._streams.stream(name, shards=shards, retention=retention)

    def items(self) -> Items:
        return self._items

    def journal(self) -> Journal:
        raise NotSupported("the journal on DynamoDB is not wired yet; use the embedded engine (sqlite:///path)")

    def blobs(self) -> Blobs | None:
        return self._blobs

    def queue_tags(self) -> QueueTags | None:
        return SQSTags(self._connection, self._queues)

    def transaction(self) -> AbstractContextManager[None]:
        raise NotSupported("AWS has no transaction across its services; use the outbox, or the embedded engine")

    def check(self) -> None:
        """Ask SQS for nothing in particular."""
        self._queues.queues()

    def close(self) -> None:
        self._connection.close()
