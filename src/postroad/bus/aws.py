"""The buses on AWS: on one SQS queue, whose receivers share the work, and on topics of SNS and EventBridge."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlsplit

from postroad.arguments import check, text
from postroad.blobs import Blobs
from postroad.bus.config import BusConfig, checked_config
from postroad.bus.endpoints import Outlet, given_queue, limit_of, topic_outlet
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import CONSUME, FIND, OBSERVE, SEND, AwsConnection, allowed, document
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import EventRegistry, default_registry
from postroad.queues import ATTRIBUTE, EVENT_SOURCE, MAX_MESSAGE_BYTES, OverflowingQueue, Queue, SQSQueues, wrap_detail
from postroad.receiving import CircuitBreakerConfig, GivenDeadLetters
from postroad.settings import bus_variable
from postroad.topics import EventBridgeTopic, SNSTopic, Topic

_HOST = re.compile(r"(?:sqs\.(?P<a>[a-z0-9-]+)|(?P<b>[a-z0-9-]+)\.queue)\.amazonaws\.com(\.cn)?")


class _Ends:
    """What the buses here send to and receive from, with the AWS clients that they were given, else their own.

    A client of their own for sends gives up within the publisher's time limit; another one waits for long polls.
    """

    def __init__(
        self, place: str | None, config: BusConfig | None, blobs: Blobs | None, clock: Clock | None, **given: Any
    ) -> None:
        self._region, self._endpoint = _where(place)
        self.config, self._blobs, self.clock = checked_config(config), blobs, clock or SYSTEM_CLOCK
        self._timeout = max(0.1, self.config.publish_timeout_seconds)
        self._given = {name: client for name, client in given.items() if client is not None}
        self._made: list[AwsConnection] = []

    def publishing(self, service: str) -> Any:
        return self._given.get(service) or self._connect(
            connect_timeout=self._timeout / 4, read_timeout=self._timeout / 2, attempts=1
        )

    def longest(self, service: str) -> float | None:
        """Return the longest time of a send through this service; None if that depends on a given client."""
        return None if service in self._given else self._timeout * 0.75

    def overflowing(self, queue: Queue) -> Queue:
        """Return the queue; with blobs it sends large bodies by reference."""
        if self._blobs is None:
            return queue
        return OverflowingQueue(queue, self._blobs, clock=self.clock, limit=self.config.max_message_bytes)

    def of_queue(self, url: str, topic: Topic | None = None) -> dict[str, Any]:
        """Return the end that receives from a queue, with its dead letters; a start subscribes it to the topic."""
        queues, letters = self._queues, self.config.dead_letter_queue_url
        dead = None if letters is None else GivenDeadLetters(self.overflowing(queues.queue(letters)), self.clock)
        inlet = given_queue(self.overflowing(queues.queue(url)), topic)
        return {"inlet": inlet, "dead_letters": dead, "config": self.config, "clock": self.clock}

    def of_topic(self, service: str, url: str | None, topic: Callable[..., Topic]) -> dict[str, Any]:
        """Return the ends of a bus on what `topic(connection, queues)` returns; without a URL it only publishes."""
        client = connection = self.publishing(service)
        if not isinstance(client, AwsConnection):
            connection = SimpleNamespace(**{service: client, "once": lambda _: client})
        made = topic(connection, None if url is None else self._queues)
        more = {"longest": self.longest(service), "close": self.close}
        outlet = topic_outlet(made, self._blobs, self.config, self.clock, **more)
        receiving = {"inlet": None, "config": self.config, "clock": self.clock}
        return {"outlet": outlet, **(receiving if url is None else self.of_queue(url, made))}

    def close(self) -> None:
        for connection in self._made:
            connection.close()

    @cached_property
    def _queues(self) -> SQSQueues:
        return SQSQueues(self._given.get("sqs") or self._connect(), self.clock)

    def _connect(self, **options: Any) -> AwsConnection:
        connection = AwsConnection(self._region, self._endpoint, **options)
        self._made.append(connection)
        return connection


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
        ends = _Ends(url, config, blobs, clock, sqs=client)
        outgoing = SQSQueues(ends.publishing("sqs"), ends.clock).queue(url, attempts=1)
        super().__init__(
            outlet=Outlet(
                name=outgoing.name,
                send=ends.overflowing(outgoing).send,
                fifo=outgoing.name.endswith(".fifo"),
                limit=limit_of(ends.config, blobs, MAX_MESSAGE_BYTES),
                longest=ends.longest("sqs"),
                close=ends.close,
            ),
            **ends.of_queue(url),
            local_bus=local_bus,
            registry=registry,
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
    """An `SQSEventBus` with a circuit breaker.

    Args:
        breaker: When it stops calling SQS for a while; None for no circuit breaker.
        options: The arguments of `SQSEventBus`.
    """

    def __init__(self, *, breaker: CircuitBreakerConfig | None = CircuitBreakerConfig(), **options: Any) -> None:  # noqa: B008 - a frozen value
        super().__init__(breaker=breaker, **options)


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
        url = None if queue_url is None else checked_url(queue_url)
        ends = _Ends(url or topic_arn, config, blobs, clock, sns=sns_client, sqs=sqs_client)
        topic = partial(SNSTopic, name=topic_arn.rpartition(":")[2], arn=topic_arn, attempts=1)
        super().__init__(
            **ends.of_topic("sns", url, topic),
            local_bus=local_bus,
            registry=registry,
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
        url = None if queue_url is None else checked_url(queue_url)
        place = event_bus_name if event_bus_name.startswith("arn:") else url
        ends = _Ends(place, config, blobs, clock, events=events_client, sqs=sqs_client)
        # With an ARN the event bus is not created: a publisher needs no right to do that.
        topic = partial(
            EventBridgeTopic,
            name=event_bus_name.rpartition("/")[2],
            arn=event_bus_name,
            source=source,
            detail=_detail_of,
            attempts=1,
        )
        super().__init__(
            **ends.of_topic("events", url, topic),
            local_bus=local_bus,
            registry=registry,
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
                    why = f"payload.{name}: {values!r} is not a collection of one or more values"
                    raise InvalidInput(why, field=f"payload.{name}", remedy="Give the values to choose in a list.")
            pattern["detail"] = {"payload": {name: list(values) for name, values in payload.items()}}
        return pattern


def _detail_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """Return the envelope itself, so that rules can match its fields; a reference to a blob keeps its attribute."""
    return wrap_detail(body, attributes) if ATTRIBUTE in attributes else body.decode()
