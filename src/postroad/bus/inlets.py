"""Where a bus receives: a queue it was given, shared with others or its own."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

from postroad.errors import NotPermitted
from postroad.queues import Queue
from postroad.topics import Topic


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

    def reopen(self, lost: Queue) -> bool:
        return False

    def close(self) -> None:
        """The queue stays as it is."""
