"""Where a bus sends, and where it receives: a queue it was given, shared with others or its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from postroad.bus.sending import Send
from postroad.errors import ConfigurationError, NotPermitted
from postroad.queues import Queue
from postroad.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where a bus sends."""

    name: str
    send: Send
    fifo: bool = False
    limit: int | None = None
    """The largest message; None where larger ones travel by reference."""
    needs_dedup_id: bool = False
    longest: float | None = None
    """The seconds after which the transport surely answers; None when nobody knows, 0 when it sends at once."""
    close: Callable[[], None] = lambda: None


class Inlet(Protocol):
    """The queue that a bus receives from, and how it comes to be."""

    @property
    def source(self) -> Queue:
        """The queue as it is now; `open` was called before."""
        ...

    def open(self) -> None:
        """Make the subscription live. Opening twice changes nothing."""
        ...

    def admit(self, types: Collection[str] | None) -> None:
        """Receive events of these types, or of all; where the filter is not ours to change, nothing happens."""
        ...

    def allow(self, attempts: int) -> None:
        """Have messages delivered so often before the queue itself moves them to the dead letters.

        Raises:
            ConfigurationError: The queue has a lower limit, which is not ours to change.
        """
        ...

    def reopen(self, lost: Queue) -> bool:
        """After this queue was removed: make another one; False where it is not ours to make, or no longer."""
        ...

    def close(self) -> None:
        """Remove what belongs to this process alone."""
        ...


class GivenQueue:
    """A queue that exists, subscribed to a topic where there is one."""

    def __init__(self, queue: Queue, topic: Topic | None = None) -> None:
        self.source = queue
        self._topic = topic
        self._subscribed = topic is None

    def open(self) -> None:
        if self._subscribed or self._topic is None:
            return
        # Whoever may not subscribe has had it subscribed by those who may.
        with suppress(NotPermitted):
            self._topic.subscribe(self.source)
        self._subscribed = True

    def admit(self, types: Collection[str] | None) -> None:
        """Whoever gave the queue decides what it receives."""

    def allow(self, attempts: int) -> None:
        refuse_more_attempts(self.source, attempts)

    def reopen(self, lost: Queue) -> bool:
        return False

    def close(self) -> None:
        """The queue stays as it is."""


def refuse_more_attempts(queue: Queue, attempts: int) -> None:
    """Raise when the queue moves messages to the dead letters after fewer receives than these attempts."""
    most = queue.traits.max_receives
    if most is not None and most < attempts:
        raise ConfigurationError(
            f"max_attempts: {attempts} is more than the {most} receives that queue {queue.name!r} allows",
            field="max_attempts",
            remedy=f"Let the queue allow {attempts} receives (`max_receives`), or give a smaller number.",
        )
