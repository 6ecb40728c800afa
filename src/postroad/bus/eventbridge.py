"""The bus on EventBridge, received from a queue that one of its rules fills."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from postroad.blobs import Blobs
from postroad.bus.clients import Clients, as_connection, checked_url, queues_of
from postroad.bus.config import SQSEventBusConfig, checked_config
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.bus.sns import inlet_of, topic_of
from postroad.bus.sqs import dead_letters_of, limit_of
from postroad.bus.transport import Outlet
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidInput
from postroad.events import EventRegistry, default_registry
from postroad.queues import ATTRIBUTE, EVENT_SOURCE, wrap_detail
from postroad.receiving import CircuitBreakerConfig
from postroad.topics import MAX_EVENTBRIDGE_BYTES, EventBridgeTopic


class EventBridgeEventBus(RemoteEventBus):
    """Puts envelopes onto an event bus, where rules may look into them; without a queue it publishes only."""

    def __init__(
        self,
        *,
        event_bus_name: str = "default",
        source: str = EVENT_SOURCE,
        queue_url: str | None = None,
        events_client: Any = None,
        sqs_client: Any = None,
        config: SQSEventBusConfig | None = None,
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
        receiving = None if url is None else clients.receiving()
        # The name is taken as it is: a publisher needs no right to make event buses.
        topic = EventBridgeTopic(
            publishing,
            queues_of(receiving, clock),
            event_bus_name.rpartition("/")[2],
            arn=event_bus_name,
            source=source,
            detail=detail_of,
            attempts=1,
        )
        self._source = source
        super().__init__(
            outlet=Outlet(
                name=topic.name,
                send=topic_of(topic, blobs, config, clock).publish,
                limit=limit_of(config, blobs, MAX_EVENTBRIDGE_BYTES),
                longest=clients.longest("events"),
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

    @staticmethod
    def pattern(
        *,
        event_types: Collection[type] | None = None,
        payload: Mapping[str, Collection[Any]] | None = None,
        source: str = EVENT_SOURCE,
        registry: EventRegistry = default_registry,
    ) -> dict[str, Any]:
        """The event pattern of a rule that chooses by type and by fields of the payload."""
        pattern: dict[str, Any] = {"source": [source]}
        if event_types is not None:
            pattern["detail-type"] = sorted(registry.name_of(each)[:128] for each in event_types)
        if payload is not None:
            pattern["detail"] = {"payload": {name: _choice(name, values) for name, values in payload.items()}}
        return pattern


def _choice(name: str, values: object) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection) or not values:
        raise InvalidInput(
            f"payload.{name}: {values!r} is not a collection of one or more values",
            field=f"payload.{name}",
            remedy="Give the values to choose in a list.",
        )
    return list(values)


def detail_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """The envelope itself, so that rules can look into it; a reference to a blob keeps its mark."""
    return wrap_detail(body, attributes) if ATTRIBUTE in attributes else body.decode()
