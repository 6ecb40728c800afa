"""What all lanes of one worker share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from postroad.backoff import CHANCE
from postroad.clock import Clock
from postroad.errors import NotSupported
from postroad.queues import Delivery, Queue
from postroad.tasks.books import Books
from postroad.tasks.children.seats import Nursery
from postroad.tasks.config import WorkerConfig
from postroad.tasks.recording import Scribe


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The place where the lanes of a worker work."""

    worker_id: str
    tenant: str
    queue_name: str
    config: WorkerConfig
    queue: Queue
    books: Books
    scribe: Scribe
    nursery: Nursery
    clock: Clock
    keeps_large: bool
    """Whether there are blobs for what is too large for the journal and for leases."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set while the worker is being stopped."""
    chance: Callable[[], float] = field(default=CHANCE.random)
    unknown: set[str] = field(default_factory=set)
    """Names of tasks that nobody here knows and that were logged."""

    def now(self) -> float:
        """The wall clock in seconds."""
        return self.clock.now().timestamp()

    def ack(self, delivery: Delivery) -> None:
        """Forget the message."""
        self.queue.ack([delivery])

    def release(self, delivery: Delivery, *, after: float = 0.0, error: str | None = None) -> None:
        """Give the message back."""
        self.queue.release([delivery], after=after, error=error)

    def bury(self, delivery: Delivery, *, reason: str, error: str | None = None) -> None:
        """Move the message to the dead letters; a queue without any hides it for as long as it can."""
        try:
            self.queue.reject([delivery], reason=reason, error=error)
        except NotSupported:
            self.queue.release([delivery], after=self.config.visibility, error=error)
