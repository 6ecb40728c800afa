"""The little that a topic bus asks of a backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, Protocol

from postroad.blobs import Blobs
from postroad.clock import Clock
from postroad.errors import QueueExists, QueueNotFound
from postroad.events import EventRegistry
from postroad.queues import Queue, QueueSpec
from postroad.topics import Topic


class Store(Protocol):
    """What gives queues, topics and blobs by name."""

    clock: Clock
    registry: EventRegistry

    def create_queue(self, spec: QueueSpec) -> Queue: ...
    def update_queue(self, spec: QueueSpec) -> Queue: ...
    def delete_queue(self, name: str) -> None: ...
    def queue(self, name: str) -> Queue: ...
    def queue_spec(self, name: str) -> QueueSpec: ...
    def topic(self, name: str, *, fifo: bool = False, overflow: Literal["blobs", "fail"] | None = None) -> Topic: ...
    def blobs(self) -> Blobs | None: ...
    def transaction(self) -> AbstractContextManager[None]: ...


class QueueTags(Protocol):
    """Signs of life on queues, for stores that remove none by themselves."""

    def renew(self, name: str, *, seconds: float) -> None:
        """Say that the owner of the queue lives, for so many seconds."""
        ...

    def abandoned(self, prefix: str, *, seconds: float) -> list[str]:
        """The queues under this prefix whose owner is gone; one without a sign gets `seconds` to give it."""
        ...


def ensure(store: Store, spec: QueueSpec) -> Queue:
    """The queue of this name as it is, made only when it is missing."""
    try:
        return store.queue(spec.name)
    except QueueNotFound:
        pass
    try:
        return store.create_queue(spec)
    except QueueExists:
        return store.queue(spec.name)
