"""A backend on AWS: SQS, SNS or EventBridge, Kinesis, DynamoDB and S3 in one region."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, TypeVar

from postroad.blobs import S3Blobs
from postroad.clock import Clock
from postroad.connections import ATTEMPTS, AwsConnection
from postroad.errors import ConfigurationError, NotFound, NotPermitted, NotSupported, Unavailable
from postroad.items import DynamoItems
from postroad.journal import DynamoRecords, EventBridgeSender, Overflow, StoredJournal
from postroad.queues import Queue, SQSQueues, SQSTags
from postroad.settings import default_stage, event_bus_name, events_bucket, events_table, events_ttl_days
from postroad.streams import KinesisStreams, Stream
from postroad.topics import EventBridgeTopics, SNSTopics, Topic, is_arn

if TYPE_CHECKING:
    from postroad.agents import AgentSettings, AgentStore, Mover
    from postroad.engine import Compaction
    from postroad.ports import QueueTags
    from postroad.topology import Site

T = TypeVar("T")


class AwsTopics:
    """SNS topics by name or ARN; event buses by their ARN."""

    def __init__(self, sns: SNSTopics, buses: EventBridgeTopics) -> None:
        self.sns, self.buses = sns, buses
        self.topics, self.topics_without_subscriptions = sns.topics, sns.topics_without_subscriptions

    def topic(self, name: str, *, fifo: bool) -> Topic:
        is_bus = is_arn(name) and ":events:" in name
        return (self.buses if is_bus else self.sns).topic(name, fifo=fifo)

    def existing(self, name: str, *, fifo: bool) -> Topic:
        return self.topic(name, fifo=fifo) if is_arn(name) else self.sns.existing(name, fifo=fifo)

    def subscribers(self, queues: Collection[str]) -> list[tuple[str, str]]:
        """Return the topics of these queues; SNS is asked topic by topic, and what may not be read is left out."""
        found = []
        for name in self.topics():
            with suppress(NotFound, NotPermitted):
                subscriptions = self.existing(name, fifo=name.endswith(".fifo")).subscriptions()
                found += [(name, each.queue) for each in subscriptions if each.queue in queues]
        return found


class AwsInstallation:
    """Everything in one AWS account and region."""

    kind = "aws"

    def __init__(self, region: str, options: Mapping[str, str], *, clock: Clock) -> None:
        self._connection = AwsConnection(
            region or None,
            endpoint_url=options.get("endpoint_url"),
            stage=options.get("stage") or default_stage(),
            bucket=options.get("bucket") or events_bucket(),
            table=options.get("table") or events_table(),
        )
        self._site_connection: AwsConnection | None = None
        self.url = f"aws://{self._connection.region}"
        self.stage = self._connection.stage
        self.stage_prefix = f"{self.stage}-"
        self.queues = SQSQueues(self._connection, clock=clock)
        self.topics = self._topics(ATTEMPTS)
        self.bus_topics = self._topics(1)
        self.items = DynamoItems(self._connection)
        self.streams = KinesisStreams(self._connection, self.items, clock)
        self.blobs = S3Blobs(self._connection, clock=clock) if self._connection.bucket else None
        # If an event bus is configured, events reach the table through it.
        sender = None
        if (bus := event_bus_name()) is not None:
            sender = EventBridgeSender(self._connection.events, event_bus_name=bus, blobs=self.blobs)
        records, overflow = DynamoRecords(self._connection), Overflow(self.blobs)
        self.journal = StoredJournal(records, overflow, clock=clock, ttl_days=events_ttl_days(), sender=sender)

    def _topics(self, attempts: int) -> AwsTopics:
        return AwsTopics(
            sns=SNSTopics(self._connection, self.queues, attempts=attempts),
            buses=EventBridgeTopics(self._connection, self.queues, attempts=attempts),
        )

    def queue_tags(self) -> QueueTags | None:
        return SQSTags(self._connection, self.queues)

    def agent_store(self, settings: AgentSettings, rejected: Callable[[], Queue]) -> tuple[AgentStore, Stream]:
        from postroad.agents.aws.store import AwsAgentStore
        from postroad.agents.tables import STREAM_RETENTION_HOURS, STREAM_SHARDS
        from postroad.settings import events_stream

        named = events_stream() or settings.stream

        def provision_stream() -> None:
            # An existing stream with another number of shards will do.
            with suppress(ConfigurationError):
                self.streams.stream(named, shards=STREAM_SHARDS, retention=STREAM_RETENTION_HOURS * 3600)

        store = AwsAgentStore(
            self._connection, self.queues, rejected, settings, self.queues.clock, provision_stream=provision_stream
        )
        return store, self.streams.open(named)

    def check_agents(self, mover: Mover) -> bool:
        """Return whether agents are set up here, or raise `ConfigurationError` that names what is missing."""
        from postroad.agents.runner import AGGREGATOR
        from postroad.agents.tables import EVENTS_STREAM, AgentSetup
        from postroad.settings import events_stream

        name = events_stream() or EVENTS_STREAM
        return AgentSetup(self._connection, name, lambda: self.streams.open(name).workers(AGGREGATOR)).check(mover)

    def site(self) -> Site:
        from postroad.topology.aws.site import AwsSite

        if self._site_connection is None:
            self._site_connection = self._connection.adaptive()
        return AwsSite(self._site_connection)

    def transaction(self) -> AbstractContextManager[None]:
        raise NotSupported("AWS has no transaction across its services; use the outbox, or the embedded engine")

    def together(self, unit: Callable[[], T], *, removes: bool = False) -> T:
        with self.transaction():
            return unit()

    def check(self) -> None:
        """Call SQS and the table of items, to see whether they answer."""
        self.queues.queues()
        try:
            self.items.get("postroad/check")
        except ConfigurationError as error:
            if error.field != "table":
                raise
            raise Unavailable(error.message, field="table", remedy=error.remedy) from error

    def compact(self, *, rebuild: bool, progress: object) -> Compaction:
        raise NotSupported("AWS keeps no file here; there is nothing to compact")

    def close(self) -> None:
        self._connection.close()
        if self._site_connection is not None:
            self._site_connection.close()
