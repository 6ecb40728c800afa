"""The buses on AWS: on one SQS queue, whose receivers share the work, and on topics of SNS and EventBridge."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from postroad.arguments import check, text
from postroad.blobs import Blobs
from postroad.bus.config import BusConfig, checked_config
from postroad.bus.endpoints import GivenQueue, Outlet, limit_of, topic_outlet
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import CONSUME, FIND, OBSERVE, SEND, AwsConnection, allowed, document
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import EventRegistry, default_registry
from postroad.queues import (
    ATTRIBUTE,
    EVENT_SOURCE,
    MAX_MESSAGE_BYTES,
    OverflowingQueue,
    Queue,
    SQSQueues,
    wrap_detail,
)
from postroad.receiving import CircuitBreakerConfig, DeadLetters, GivenDeadLetters
from postroad.settings import bus_variable
from postroad.topics import EventBridgeTopic, SNSTopics, Topic

_HOST = re.compile(r"(?:sqs\.(?P<a>[a-z0-9-]+)|(?P<b>[a-z0-9-]+)\.queue)\.amazonaws\.com(\.cn)?")


class _Clients:
    """The AWS clients of a bus: those it was given, or its own, made when first used.

    One of its own gives up within the publisher's time limit; the other one waits for long polls.
    """

    def __init__(self, *, place: str | None, timeout: float, given: dict[str, Any]) -> None:
        self._region, self._endpoint = _where(place)
        self._timeout = max(0.1, timeout)
        self._given = {name: client for name, client in given.items() if client is not None}
        self._made: list[AwsConnection] = []

    def publishing(self, service: str) -> Any:
        return self._given.get(service) or self._connect(
            connect_timeout=self._timeout / 4, read_timeout=self._timeout / 2, attempts=1
        )

    def longest(self, service: str) -> float | None:
        """Return the longest time of a send through this service; None if that depends on a given client."""
        return None if service in self._given else self._timeout * 0.75

    def receiving(self) -> Any:
        return self._given.get("sqs") or self._connect()

    def close(self) -> None:
        for connection in self._made:
            connection.close()

    def _connect(self, **options: Any) -> AwsConnection:
        connection = AwsConnection(self._region, self._endpoint, **options)
        self._made.append(connection)
        return connection


def _as_connection(source: Any, service: str) -> AwsConnection:
    """Return a connection with the client of this service, given either of them."""
    if isinstance(source, AwsConnection):
        return source
    return cast(AwsConnection, SimpleNamespace(**{service: source, "once": lambda _: source}))


def checked_url(queue_url: str | None) -> str:
    """Return the queue's URL, from the argument or the environment."""
    found = bus_variable("QUEUE_URL") if queue_url is None else ("queue_url", queue_url)
    url = str(found[1]) if found else ""
    if not url.startswith(("http://", "https://")) or not urlsplit(url).netloc:
        if found is None:
            what = "queue_url: no queue URL is given, neither as argument nor in WINK_SQS_QUEUE_URL"
        else:
            where = (
                "argument queue_url or variable WINK_SQS_QUEUE_URL" if queue_url is not None else f"variable {found[0]}"
            )
            what = f"queue_url: {url!r} is not the URL of a queue ({where})"
        raise ConfigurationError(what, field="queue_url", remedy="Give queue_url=..., or set WINK_SQS_QUEUE_URL.")
    return url


def _where(place: str | None) -> tuple[str | None, str | None]:
    """Return region and endpoint as far as the URL or ARN has them; the rest is AWS's own configuration."""
    if place is None:
        return None, None
    if place.startswith("arn:"):
        return place.split(":")[3] or None, None
    parts = urlsplit(place)
    if (found := _HOST.fullmatch(parts.hostname or "")) is not None:
        return found["a"] or found["b"], None
    return None, f"{parts.scheme}://{parts.netloc}"


_Arn = text(
    r"arn:[A-Za-z0-9_-]+:sqs:[A-Za-z0-9_-]+:[0-9]+:[A-Za-z0-9_-]+(\.fifo)?",
    "the ARN of one queue",
    remedy="Give the whole ARN, such as arn:aws:sqs:eu-central-1:123456789012:orders.",
)
_PUBLISH = (*SEND, *OBSERVE)
_RECEIVE = (*CONSUME, *FIND)


class SQSEventBus(RemoteEventBus):
    """Publishes to a queue and receives from the same one.

    Args:
        queue_url: The URL of the queue; by default that of the environment (`WINK_SQS_QUEUE_URL`).
        client: A boto3 client for SQS; by default the bus makes its own.
        config: All settings; by default those of the environment.
        local_bus: The bus that calls the handlers of this process; by default one of its own.
        blobs: Where events go that are too large for a message; by default they are refused.
        registry: The classes of events; by default those of `@event`.
        clock: Another clock, for tests.
        breaker: When to stop sending and receiving for a while because they fail; by default never.

    Raises:
        ConfigurationError: There is no valid URL.

    Example:
        bus = SQSEventBus(queue_url="https://sqs.eu-central-1.amazonaws.com/123456789012/orders")
    """

    def __init__(
        self,
        *,
        queue_url: str | None = None,
        client: Any = None,
        config: BusConfig | None = None,
        local_bus: EventBus | None = None,
        blobs: Blobs | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
    ) -> None:
        url = checked_url(queue_url)
        config = checked_config(config)
        clock = SYSTEM_CLOCK if clock is None else clock
        clients = _Clients(place=url, timeout=config.publish_timeout_seconds, given={"sqs": client})
        outgoing = SQSQueues(clients.publishing("sqs"), clock).queue(url, attempts=1)
        receiving = clients.receiving()
        super().__init__(
            outlet=Outlet(
                name=outgoing.name,
                send=_overflowing(outgoing, blobs, config, clock).send,
                fifo=outgoing.name.endswith(".fifo"),
                limit=limit_of(config, blobs, MAX_MESSAGE_BYTES),
                longest=clients.longest("sqs"),
                close=clients.close,
            ),
            inlet=GivenQueue(_overflowing(SQSQueues(receiving, clock).queue(url), blobs, config, clock)),
            dead_letters=_dead_letters_of(receiving, blobs, config, clock),
            config=config,
            local_bus=local_bus,
            registry=registry,
            clock=clock,
            breaker=breaker,
        )
        self.queue_url = url

    @staticmethod
    def iam_policy(
        queue_arn: str, *, role: Literal["publish", "receive", "both"] = "both", dead_letter_arn: str | None = None
    ) -> dict[str, Any]:
        """Return the policy that `role` (publish, receive or both) needs on `queue_arn` and `dead_letter_arn` only."""
        if role not in ("publish", "receive", "both"):
            raise InvalidInput(f"role: {role!r} is none of publish, receive, both", field="role")
        check(queue_arn, _Arn, "queue_arn")
        if dead_letter_arn is not None:
            check(dead_letter_arn, _Arn, "dead_letter_arn")
        actions = {"publish": _PUBLISH, "receive": _RECEIVE, "both": (*_PUBLISH, *_RECEIVE)}[role]
        statements = [allowed(sorted(set(actions)), queue_arn)]
        if dead_letter_arn is not None and role != "publish":
            statements.append(allowed(sorted(_PUBLISH), dead_letter_arn))
        return document(statements)


class SQSEventBusWithCircuitBreaker(SQSEventBus):
    """An `SQSEventBus` with a circuit breaker, unless `breaker` is None.

    Args:
        options: The arguments of `SQSEventBus`.
    """

    def __init__(self, *, breaker: CircuitBreakerConfig | None = CircuitBreakerConfig(), **options: Any) -> None:  # noqa: B008 - a frozen value
        super().__init__(breaker=breaker, **options)


def _overflowing(queue: Queue, blobs: Blobs | None, config: BusConfig, clock: Clock) -> Queue:
    """Return the queue; with blobs it sends large bodies by reference."""
    return queue if blobs is None else OverflowingQueue(queue, blobs, clock=clock, limit=config.max_message_bytes)


def _dead_letters_of(receiving: Any, blobs: Blobs | None, config: BusConfig, clock: Clock) -> DeadLetters | None:
    """Return the dead letters of the config, if it has any."""
    if config.dead_letter_queue_url is None:
        return None
    letters = SQSQueues(receiving, clock).queue(config.dead_letter_queue_url)
    return GivenDeadLetters(_overflowing(letters, blobs, config, clock), clock)


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
        clients = _Clients(place=url or topic_arn, timeout=config.publish_timeout_seconds, given=given)
        publishing = _as_connection(clients.publishing("sns"), "sns")
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
        clients = _Clients(place=place, timeout=config.publish_timeout_seconds, given=given)
        publishing = _as_connection(clients.publishing("events"), "events")
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
    queue = _overflowing(SQSQueues(receiving, clock).queue(url), blobs, config, clock)
    return {"inlet": GivenQueue(queue, topic), "dead_letters": _dead_letters_of(receiving, blobs, config, clock)}


def _detail_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """Return the envelope itself, so that rules can match its fields; a reference to a blob keeps its attribute."""
    return wrap_detail(body, attributes) if ATTRIBUTE in attributes else body.decode()
