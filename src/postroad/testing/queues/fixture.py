"""The fixture of the queue suite: a store, time that passes on demand, and messages to send."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from postroad.queues import AckResult, Delivery, OutgoingMessage, Queue, QueueSpec, QueueStore
from postroad.testing.clock import FakeClock
from postroad.testing.conformance import Suite

LEASE = 1.0
"""Seconds of the leases under test: short enough to sleep through on a store with a clock of its own."""

Verb = Callable[[Queue, Sequence[Delivery]], list[AckResult]]
ACK: Verb = lambda queue, held: queue.ack(held)  # noqa: E731
EXTEND: Verb = lambda queue, held: queue.extend(held, seconds=60)  # noqa: E731
RELEASE: Verb = lambda queue, held: queue.release(held)  # noqa: E731
REJECT: Verb = lambda queue, held: queue.reject(held, reason="no")  # noqa: E731
VERBS = [pytest.param(EXTEND, id="extend"), pytest.param(RELEASE, id="release")]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFixture:
    """An adapter under test.

    Attributes:
        queues: A store without queues.
        clock: The store's clock; without one, time passes by sleeping and tests with long waits are skipped.
        reopen: Closes the store, as the end of a process does, and opens it again; None where nothing outlives it.
    """

    queues: QueueStore
    clock: FakeClock | None = None
    reopen: Callable[[], QueueStore] | None = None

    def create(self, base: str = "jobs", *, fifo: bool = False, **settings: Any) -> Queue:
        """Make a queue with `settings`, FIFO if `fifo`, under a name of its own that begins with `base`."""
        return self.queues.create_queue(self.spec(base, fifo=fifo, **settings))

    def spec(self, base: str = "jobs", *, fifo: bool = False, **settings: Any) -> QueueSpec:
        """Return `settings`, with short leases, of a queue, FIFO if `fifo`, whose own name begins with `base`."""
        name = f"{base}-{uuid.uuid4().hex[:8]}{'.fifo' if fifo else ''}"
        return QueueSpec(name, **{"fifo": fifo, "visibility": LEASE, "receive_wait": 0, **settings})

    def filled(self, *bodies: str, fifo: bool = False, **settings: Any) -> Queue:
        """Make a queue with `settings` and send `bodies` to it, to one group if it is `fifo`."""
        queue = self.create(fifo=fifo, **settings)
        if bodies:
            queue.send(ordered("g", *bodies) if fifo else texts(*bodies))
        return queue

    def leased(self, body: str, *, fifo: bool = False, **settings: Any) -> tuple[Queue, Delivery]:
        """Make a queue with `settings`, FIFO if `fifo`, send `body` to it and receive it."""
        queue = self.filled(body, fifo=fifo, **settings)
        return queue, take_one(queue)

    def create_with_dead_letters(self, *bodies: str, fifo: bool = False, **settings: Any) -> tuple[Queue, Queue]:
        """Make a queue with `settings`, FIFO if `fifo`, and its dead-letter queue, and send `bodies` to the queue."""
        dead = self.create("dead", fifo=fifo)
        return self.filled(*bodies, fifo=fifo, dead_letter=dead.name, **settings), dead

    def change(self, queue: Queue, **settings: Any) -> Queue:
        """Give `queue` other `settings`."""
        return self.queues.update_queue(dataclasses.replace(self.queues.queue_spec(queue.name), **settings))

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        if self.clock is None:
            time.sleep(seconds)
        else:
            self.clock.advance(seconds)

    def outlast_lease(self) -> None:
        """Let so much time pass that a lease or delay of a second is surely over."""
        self.advance(LEASE + 0.3)

    def exhaust(self, queue: Queue, *, receives: int) -> None:
        """Let leases of `queue` end, `receives` times, until the first message is a dead letter, and receive."""
        for _ in range(receives):
            take_one(queue, visibility=LEASE)
            self.outlast_lease()
        queue.receive()

    def jump(self, seconds: float) -> None:
        """Let many `seconds` pass; a store with a clock of its own cannot be made to wait for it."""
        self.fake_clock().advance(seconds)

    def fake_clock(self) -> FakeClock:
        """Return the fake clock, or skip the test."""
        if self.clock is None:
            pytest.skip("the store has a clock of its own, and nobody waits that long")
        return self.clock

    def reopened(self, queue: Queue) -> Queue:
        """Close the store, open it again and return the same `queue`, or skip the test."""
        if not queue.traits.durable or self.reopen is None:
            pytest.skip("the store does not outlive its process")
        return self.reopen().queue(queue.name)


class QueueSuite(Suite):
    """The fixtures of the queue suite."""

    @pytest.fixture
    def queue(self, ground: QueueFixture) -> Queue:
        """A standard queue with short leases."""
        return ground.create()

    @pytest.fixture
    def fifo_queue(self, ground: QueueFixture) -> Queue:
        """A FIFO queue with short leases."""
        return ground.create(fifo=True)


def texts(*bodies: str, **fields: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage(body=body, **fields) for body in bodies]


def ordered(group: str, *bodies: str) -> list[OutgoingMessage]:
    """Return messages of one group, each with a deduplication id of its own."""
    return [OutgoingMessage(body=body, group=group, dedup_id=f"{group}-{body}") for body in bodies]


def take(queue: Queue, count: int, *, visibility: float | None = None) -> list[Delivery]:
    """Receive `count` messages in as many calls as the adapter needs."""
    taken: list[Delivery] = []
    while len(taken) < count:
        received = queue.receive(max_messages=count - len(taken), wait=2.0, visibility=visibility)
        assert received, f"{len(taken)} of {count} messages came"
        taken += received
    return taken


def take_one(queue: Queue, *, visibility: float | None = None) -> Delivery:
    return take(queue, 1, visibility=visibility)[0]


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.body.decode() for delivery in deliveries]


def drained(queue: Queue, count: int) -> list[str]:
    """Receive `count` messages, check that no more are visible, and return their texts."""
    received = bodies(take(queue, count))
    assert queue.receive() == []
    return received
