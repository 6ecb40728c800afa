"""What the rules of queues stand on: a store, and time that passes on demand."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from postroad.queues import Delivery, OutgoingMessage, Queue, QueueSpec, QueueStore
from postroad.testing.clock import FakeClock
from postroad.testing.differences import Differences

LEASE = 1.0
"""Seconds of the leases under test: short enough to sit out on a store with a clock of its own."""
LEASE_OVER = 1.3
"""Seconds after which such a lease is surely over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFixture:
    """An adapter under test. Without a fake clock, time passes by sleeping and the long waits are left out."""

    queues: QueueStore
    clock: FakeClock | None = None
    reopen: Callable[[], QueueStore] | None = None
    """Close the store, as the end of a process does, and open it again; None where nothing outlives it."""

    def create(self, base: str = "jobs", *, fifo: bool = False, **settings: Any) -> Queue:
        """Make a queue under a name that no other test has."""
        return self.queues.create_queue(self.spec(base, fifo=fifo, **settings))

    def spec(self, base: str = "jobs", *, fifo: bool = False, **settings: Any) -> QueueSpec:
        """The settings of a queue with a name of its own and short leases."""
        name = f"{base}-{uuid.uuid4().hex[:8]}{'.fifo' if fifo else ''}"
        return QueueSpec(name, **{"fifo": fifo, "visibility": LEASE, "receive_wait": 0, **settings})

    def create_with_dead_letters(self, *, fifo: bool = False, **settings: Any) -> tuple[Queue, Queue]:
        """Make a queue and its dead-letter queue."""
        dead = self.create("dead", fifo=fifo)
        return self.create(fifo=fifo, dead_letter=dead.name, **settings), dead

    def change(self, queue: Queue, **settings: Any) -> Queue:
        """Give the queue other settings."""
        return self.queues.update_queue(dataclasses.replace(self.queues.queue_spec(queue.name), **settings))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if self.clock is None:
            time.sleep(seconds)
        else:
            self.clock.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Let a long time pass; a store with a clock of its own cannot be made to wait for it."""
        self.fake_clock().advance(seconds)

    def fake_clock(self) -> FakeClock:
        """The clock in the test's hand, or a skip."""
        if self.clock is None:
            pytest.skip("the store has a clock of its own, and nobody waits that long")
        return self.clock

    def reopened(self, queue: Queue) -> Queue:
        """The same queue after the store was closed and opened again, or a skip."""
        if not queue.traits.durable or self.reopen is None:
            pytest.skip("the store does not outlive its process")
        return self.reopen().queue(queue.name)


QueueGround = QueueFixture
"""The name that this class had before."""


class QueueRules(Differences):
    """The fixture that every group of rules needs."""

    @pytest.fixture
    def ground(self) -> QueueFixture:
        """Override this with the adapter under test."""
        raise NotImplementedError


def texts(*bodies: str, **fields: Any) -> list[OutgoingMessage]:
    """Messages of these bodies."""
    return [OutgoingMessage(body=body, **fields) for body in bodies]


def ordered(group: str, *bodies: str) -> list[OutgoingMessage]:
    """Messages of one group, each with a deduplication id of its own."""
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
    """Receive one message."""
    return take(queue, 1, visibility=visibility)[0]


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    """The texts of the deliveries."""
    return [delivery.body.decode() for delivery in deliveries]


def exhaust(ground: QueueFixture, queue: Queue, *, receives: int) -> None:
    """Receive the queue's first message so often that the next receive finds it dead, then look once more."""
    for _ in range(receives):
        take_one(queue, visibility=LEASE)
        ground.advance(LEASE_OVER)
    queue.receive()
