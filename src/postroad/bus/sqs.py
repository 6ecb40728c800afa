"""The bus on one SQS queue: whoever receives from it shares the work."""

from __future__ import annotations

from typing import Any, Literal

from postroad.arguments import check, text
from postroad.blobs import Blobs
from postroad.bus.clients import Clients, checked_url, queues_of
from postroad.bus.config import SQSEventBusConfig, checked_config
from postroad.bus.local import EventBus
from postroad.bus.remote import RemoteEventBus
from postroad.bus.transport import GivenQueue, Outlet
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import CONSUME, FIND, OBSERVE, SEND, allowed, document
from postroad.errors import InvalidInput
from postroad.events import EventRegistry
from postroad.queues import MAX_MESSAGE_BYTES, OverflowingQueue, Queue
from postroad.receiving import CircuitBreakerConfig, DeadLetters, GivenDeadLetters

_Arn = text(
    r"arn:[A-Za-z0-9_-]+:sqs:[A-Za-z0-9_-]+:[0-9]+:[A-Za-z0-9_-]+(\.fifo)?",
    "the ARN of one queue",
    remedy="Give the whole ARN, such as arn:aws:sqs:eu-central-1:123456789012:orders.",
)
_PUBLISH = (*SEND, *OBSERVE)
_RECEIVE = (*CONSUME, *FIND)


class SQSEventBus(RemoteEventBus):
    """Publishes to a queue and receives from the same one."""

    def __init__(
        self,
        *,
        queue_url: str | None = None,
        client: Any = None,
        config: SQSEventBusConfig | None = None,
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
        outgoing = queues_of(clients.publishing("sqs"), clock).queue(url, attempts=1)
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
            inlet=GivenQueue(overflowing(queues_of(receiving, clock).queue(url), blobs, config, clock)),
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
        """The least rights that publishers or receivers of the queue need, on exactly these ARNs."""
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
    """The same with breakers, which are on unless they are turned off."""

    def __init__(self, *, breaker: CircuitBreakerConfig | None = CircuitBreakerConfig(), **options: Any) -> None:  # noqa: B008 - a frozen value
        super().__init__(breaker=breaker, **options)


def overflowing(queue: Queue, blobs: Blobs | None, config: SQSEventBusConfig, clock: Clock) -> Queue:
    """The queue, with large bodies travelling as blobs where there are any."""
    if blobs is None:
        return queue
    return OverflowingQueue(queue, blobs, clock=clock, limit=config.max_message_bytes)


def limit_of(config: SQSEventBusConfig, blobs: Blobs | None, transport: int) -> int | None:
    """The size above which a message is refused at once; None where it travels by reference instead."""
    if blobs is not None and config.overflow == "blobs":
        return None
    return min(config.max_message_bytes or transport, transport)


def dead_letters_of(receiving: Any, blobs: Blobs | None, config: SQSEventBusConfig, clock: Clock) -> DeadLetters | None:
    """Where the bus itself puts poison, when it was told."""
    if config.dead_letter_queue_url is None:
        return None
    letters = queues_of(receiving, clock).queue(config.dead_letter_queue_url)
    return GivenDeadLetters(overflowing(letters, blobs, config, clock), clock)
