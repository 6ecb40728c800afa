"""The bus on an SNS topic, received from a queue."""

from __future__ import annotations

from typing import Any

from postroad.blobs import Blobs
from postroad.bus.clients import Clients, as_connection, checked_url, queues_of
from postroad.bus.config import SQSEventBusConfig, checked_config
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.bus.sqs import dead_letters_of, limit_of, overflowing
from postroad.bus.transport import GivenQueue, Outlet
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError
from postroad.events import EventRegistry
from postroad.receiving import CircuitBreakerConfig
from postroad.topics import MAX_SNS_BYTES, OverflowingTopic, SNSTopics, Topic


class SNSEventBus(RemoteEventBus):
    """Publishes to a topic and receives from one of its queues; without a queue it publishes only."""

    def __init__(
        self,
        *,
        topic_arn: str,
        queue_url: str | None = None,
        sns_client: Any = None,
        sqs_client: Any = None,
        config: SQSEventBusConfig | None = None,
        local_bus: EventBus | None = None,
        blobs: Blobs | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
    ) -> None:
        if not str(topic_arn).startswith("arn:"):
            raise ConfigurationError(f"topic_arn: {topic_arn!r} is not the ARN of a topic", field="topic_arn")
        config = checked_config(config)
        clock = SYSTEM_CLOCK if clock is None else clock
        url = None if queue_url is None else checked_url(queue_url)
        given = {"sns": sns_client, "sqs": sqs_client}
        clients = Clients(place=url or topic_arn, timeout=config.publish_timeout_seconds, given=given)
        publishing = as_connection(clients.publishing("sns"), "sns")
        receiving = None if url is None else clients.receiving()
        topic = SNSTopics(publishing, queues_of(receiving, clock), attempts=1).topic(topic_arn)
        super().__init__(
            outlet=Outlet(
                name=topic.name,
                send=topic_of(topic, blobs, config, clock).publish,
                fifo=topic.name.endswith(".fifo"),
                limit=limit_of(config, blobs, MAX_SNS_BYTES),
                longest=clients.longest("sns"),
                close=clients.close,
            ),
            inlet=None if url is None else inlet_of(url, receiving, topic, blobs, config, clock),
            dead_letters=None if url is None else dead_letters_of(receiving, blobs, config, clock),
            config=config,
            local_bus=local_bus,
            registry=registry,
            clock=clock,
            breaker=breaker,
        )


def topic_of(topic: Topic, blobs: Blobs | None, config: SQSEventBusConfig, clock: Clock) -> Topic:
    """The topic, with large bodies travelling as blobs where there are any."""
    if blobs is None or config.overflow == "fail":
        return topic
    return OverflowingTopic(topic, blobs, clock=clock, limit=config.max_message_bytes)


def inlet_of(
    url: str, receiving: Any, topic: Topic, blobs: Blobs | None, config: SQSEventBusConfig, clock: Clock
) -> GivenQueue:
    """The queue, subscribed to the topic when the receiver starts."""
    return GivenQueue(overflowing(queues_of(receiving, clock).queue(url), blobs, config, clock), topic)
