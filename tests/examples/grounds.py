"""The two grounds that the journeys stand on: one SQLite file, and queues of emulated AWS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import boto3

import postroad
from postroad import Backend, Clock, QueueSpec
from postroad.bus import (
    BusConfig,
    CircuitBreakerConfig,
    RemoteEventBus,
    SQSEventBus,
    SQSEventBusWithCircuitBreaker,
)
from postroad.bus.endpoints import Outlet

_COUNTS = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]


class Ground(Protocol):
    """Where processes meet. `url` opens it in another process, `backend` has its topics."""

    url: str
    backend: Backend

    def bus(self, queue: str, config: BusConfig) -> RemoteEventBus:
        """A bus on one queue, made when it is missing: whoever receives from it shares the work."""
        ...

    def left(self, queue: str) -> int:
        """How many messages the queue of a bus holds, those in somebody's hands included."""
        ...

    def make(self, queue: str) -> None:
        """Make a bare queue."""
        ...

    def guarded(self, queue: str, config: BusConfig, clock: Clock) -> RemoteEventBus:
        """A bus with a breaker that publishes to a bare queue, which need not be there."""
        ...


class Embedded:
    """One file; the queue is that of a group, whose publishers call their local handlers too."""

    def __init__(self, url: str, backend: Backend) -> None:
        self.url, self.backend = url, backend

    def bus(self, queue: str, config: BusConfig) -> RemoteEventBus:
        topic, fifo = queue.removesuffix(".fifo"), queue.endswith(".fifo")
        return self.backend.bus(topic, "all", fifo=fifo, local=config.local_dispatch, config=config)

    def left(self, queue: str) -> int:
        stats = self.backend.queue(f"{queue}--all").stats()
        return stats.visible + stats.in_flight

    def make(self, queue: str) -> None:
        self.backend.create_queue(QueueSpec(queue))

    def guarded(self, queue: str, config: BusConfig, clock: Clock) -> RemoteEventBus:
        outlet = Outlet(name=queue, send=lambda messages: self.backend.queue(queue).send(messages))
        return RemoteEventBus(outlet=outlet, inlet=None, config=config, clock=clock, breaker=CircuitBreakerConfig())


class OnSqs:
    """One SQS queue for each name."""

    def __init__(self, url: str, backend: Backend, opened: ExitStack) -> None:
        self.url, self.backend = url, backend
        self._opened = opened
        self.client: Any = boto3.client("sqs", region_name="us-east-1", endpoint_url=url.partition("endpoint_url=")[2])
        opened.callback(self.client.close)

    def bus(self, queue: str, config: BusConfig) -> RemoteEventBus:
        attributes = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
        made = self.client.create_queue(QueueName=queue, Attributes=attributes)
        return self._opened.enter_context(SQSEventBus(queue_url=made["QueueUrl"], client=self.client, config=config))

    def left(self, queue: str) -> int:
        url = self.client.get_queue_url(QueueName=queue)["QueueUrl"]
        told = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=_COUNTS)
        return sum(int(told["Attributes"][name]) for name in _COUNTS)

    def make(self, queue: str) -> None:
        self.client.create_queue(QueueName=queue)

    def guarded(self, queue: str, config: BusConfig, clock: Clock) -> RemoteEventBus:
        url = f"{self.client.meta.endpoint_url}/000000000000/{queue}"
        bus = SQSEventBusWithCircuitBreaker(queue_url=url, client=self.client, config=config, clock=clock)
        return self._opened.enter_context(bus)


@contextmanager
def ground(url: str) -> Iterator[Ground]:
    """The ground that the URL names; its buses are closed with it."""
    with ExitStack() as opened:
        backend = opened.enter_context(postroad.connect(url))
        yield OnSqs(url, backend, opened) if url.startswith("aws:") else Embedded(url, backend)
