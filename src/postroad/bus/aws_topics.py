"""The buses on topics of AWS, SNS and EventBridge, each received from an SQS queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from postroad.blobs import Blobs
from postroad.bus.config import BusConfig, checked_config
from postroad.bus.endpoints import GivenQueue, topic_outlet
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.bus.sqs import Clients, as_connection, checked_url, dead_letters_of, overflowing
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import EventRegistry, default_registry
from postroad.queues import ATTRIBUTE, EVENT_SOURCE, SQSQueues, wrap_detail
from postroad.receiving import CircuitBreakerConfig
from postroad.topics import EventBridgeTopic, SNSTopics, Topic


class SNSEventBus(RemoteEventBus):
    """Publishes to an SNS topic and receives from a queue; without a queue it only publishes.

    Args:
        topic_arn: The ARN of the topic.
        queue_url: The URL of the queue, which is subscribed to the topic when the receiver starts.
        sns_client: A boto3 client for SNS; by default the bus makes its own.
        sqs_client: A boto3 client for SQS; by default the bus makes its own.
        config, local_bus, blobs, registry, clock, breaker: As for `SQSEventBus`.

    Raises:
        ConfigurationError: The ARN or the URL is not valid.
    """

    def __init__(
        self,
        *,
        topic_arn: str,
        queue_url: str | None = None,
        sns_client: Any = None,
        sqs_client: Any = None,
        config: BusConfig | None = None,
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
        receiving: Any = None if url is None else clients.receiving()
        topic = SNSTopics(publishing, SQSQueues(receiving, clock), attempts=1).topic(topic_arn)
        super().__init__(
            outlet=topic_outlet(topic, blobs, config, clock, longest=clients.longest("sns"), close=clients.close),
            **_receiving_end(url, receiving, topic, blobs, config, clock),
            config=config,
            local_bus=local_bus,
            registry=registry,
            clock=clock,
            breaker=breaker,
        )


class EventBridgeEventBus(RemoteEventBus):
    """Publishes to an EventBridge event bus and receives from a queue; without a queue it only publishes.

    Rules of the event bus can match fields of the events.

    Args:
        event_bus_name: The name of the event bus, or its ARN.
        source: The `source` of the events, which rules match.
        queue_url: The URL of a queue that is the target of a rule.
        events_client: A boto3 client for EventBridge; by default the bus makes its own.
        sqs_client: A boto3 client for SQS; by default the bus makes its own.
        config, local_bus, blobs, registry, clock, breaker: As for `SQSEventBus`.

    Raises:
        ConfigurationError: The URL is not valid.
    """

    def __init__(
        self,
        *,
        event_bus_name: str = "default",
        source: str = EVENT_SOURCE,
        queue_url: str | None = None,
        events_client: Any = None,
        sqs_client: Any = None,
        config: BusConfig | None = None,
        local_bus: EventBus | None = None,
        blobs: Blobs | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
    ) -> None:
        config = checked_config(config)
        clock = SYSTEM_CLOCK if clock is None else clock
        url = None if queue_url is None else checked_url(queue_url)
        place = event_bus_name if event_bus_name.startswith("arn:") else url
        given = {"events": events_client, "sqs": sqs_client}
        clients = Clients(place=place, timeout=config.publish_timeout_seconds, given=given)
        publishing = as_connection(clients.publishing("events"), "events")
        receiving: Any = None if url is None else clients.receiving()
        # The event bus is not created: a publisher needs no right to do that.
        topic = EventBridgeTopic(
            publishing,
            SQSQueues(receiving, clock),
            event_bus_name.rpartition("/")[2],
            arn=event_bus_name,
            source=source,
            detail=_detail_of,
            attempts=1,
        )
        super().__init__(
            outlet=topic_outlet(topic, blobs, config, clock, longest=clients.longest("events"), close=clients.close),
            **_receiving_end(url, receiving, topic, blobs, config, clock),
            config=config,
            local_bus=local_bus,
            registry=registry,
            clock=clock,
            breaker=breaker,
        )

    @staticmethod
    def pattern(
        *,
        event_types: Collection[type] | None = None,
        payload: Mapping[str, Collection[Any]] | None = None,
        source: str = EVENT_SOURCE,
        registry: EventRegistry = default_registry,
    ) -> dict[str, Any]:
        """Return the event pattern of a rule that matches types and fields of the payload.

        Args:
            event_types: The classes that match; by default all.
            payload: For each field of the payload the values that match.
            source: The `source` of the bus.
            registry: The registry of the bus.
        """
        pattern: dict[str, Any] = {"source": [source]}
        if event_types is not None:
            pattern["detail-type"] = sorted(registry.name_of(each)[:128] for each in event_types)
        if payload is not None:
            for name, values in payload.items():
                given: object = values
                if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection) or not values:
                    raise InvalidInput(
                        f"payload.{name}: {values!r} is not a collection of one or more values",
                        field=f"payload.{name}",
                        remedy="Give the values to choose in a list.",
                    )
            pattern["detail"] = {"payload": {name: list(values) for name, values in payload.items()}}
        return pattern


def _receiving_end(
    url: str | None, receiving: Any, topic: Topic, blobs: Blobs | None, config: BusConfig, clock: Clock
) -> dict[str, Any]:
    """Return the queue, which is subscribed to the topic when the receiver starts, and its dead letters, if any."""
    if url is None:
        return {"inlet": None}
    queue = overflowing(SQSQueues(receiving, clock).queue(url), blobs, config, clock)
    return {"inlet": GivenQueue(queue, topic), "dead_letters": dead_letters_of(receiving, blobs, config, clock)}


def _detail_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """Return the envelope itself, so that rules can match its fields; a reference to a blob keeps its attribute."""
    return wrap_detail(body, attributes) if ATTRIBUTE in attributes else body.decode()
