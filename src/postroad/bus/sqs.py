"""The bus on one SQS queue, whose receivers share the work; and the AWS clients of this and the other AWS buses."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from postroad.arguments import check, text
from postroad.blobs import Blobs
from postroad.bus.config import BusConfig, checked_config
from postroad.bus.endpoints import GivenQueue, Outlet, limit_of
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import CONSUME, FIND, OBSERVE, SEND, AwsConnection, allowed, document
from postroad.errors import ConfigurationError, InvalidInput
from postroad.events import EventRegistry
from postroad.queues import MAX_MESSAGE_BYTES, OverflowingQueue, Queue, SQSQueues
from postroad.receiving import CircuitBreakerConfig, DeadLetters, GivenDeadLetters
from postroad.settings import bus_variable

_HOST = re.compile(r"(?:sqs\.(?P<a>[a-z0-9-]+)|(?P<b>[a-z0-9-]+)\.queue)\.amazonaws\.com(\.cn)?")


class Clients:
    """The AWS clients of a bus: those it was given, or its own, made when first used.

    One of its own gives up within the publisher's time limit; the other one waits for long polls.
    """

    def __init__(self, *, place: str | None, timeout: float, given: dict[str, Any]) -> None:
        self._region, self._endpoint = _where(place)
        self._timeout = max(0.1, timeout)
        self._given = {name: client for name, client in given.items() if client is not None}
        self._made: list[AwsConnection] = []

    def publishing(self, service: str) -> Any:
        """Return the client or connection that sends through this service."""
        return self._given.get(service) or self._connect(
            connect_timeout=self._timeout / 4, read_timeout=self._timeout / 2, attempts=1
        )

    def longest(self, service: str) -> float | None:
        """Return the longest time of a send through this service; None if that depends on a given client."""
        return None if service in self._given else self._timeout * 0.75

    def receiving(self) -> Any:
        """Return the client or connection that receives from SQS."""
        return self._given.get("sqs") or self._connect()

    def close(self) -> None:
        """Close the bus's own clients."""
        for connection in self._made:
            connection.close()

    def _connect(self, **options: Any) -> AwsConnection:
        connection = AwsConnection(self._region, self._endpoint, **options)
        self._made.append(connection)
        return connection


def as_connection(source: Any, service: str) -> AwsConnection:
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
        clients = Clients(place=url, timeout=config.publish_timeout_seconds, given={"sqs": client})
        outgoing = SQSQueues(clients.publishing("sqs"), clock).queue(url, attempts=1)
        receiving = clients.receiving()
        super().__init__(
            outlet=Outlet(
                name=outgoing.name,
                send=overflowing(outgoing, blobs, config, clock).send,
                fifo=outgoing.name.endswith(".fifo"),
                limit=limit_of(config, blobs, MAX_MESSAGE_BYTES),
                longest=clients.longest("sqs"),
                close=clients.close,
            ),
            inlet=GivenQueue(overflowing(SQSQueues(receiving, clock).queue(url), blobs, config, clock)),
            dead_letters=dead_letters_of(receiving, blobs, config, clock),
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


def overflowing(queue: Queue, blobs: Blobs | None, config: BusConfig, clock: Clock) -> Queue:
    """Return the queue; with blobs it sends large bodies by reference."""
    return queue if blobs is None else OverflowingQueue(queue, blobs, clock=clock, limit=config.max_message_bytes)


def dead_letters_of(receiving: Any, blobs: Blobs | None, config: BusConfig, clock: Clock) -> DeadLetters | None:
    """Return the dead letters of the config, if it has any."""
    if config.dead_letter_queue_url is None:
        return None
    letters = SQSQueues(receiving, clock).queue(config.dead_letter_queue_url)
    return GivenDeadLetters(overflowing(letters, blobs, config, clock), clock)
