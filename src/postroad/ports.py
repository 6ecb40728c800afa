"""The ports of a backend: what adapters provide, and how the code above opens things with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar, runtime_checkable

from postroad.blobs import Blobs
from postroad.clock import Clock
from postroad.events import EventRegistry
from postroad.items import Items
from postroad.journal import Journal
from postroad.queues import MessageHistory, Queue, QueueOverview, QueueSpec, QueueStore
from postroad.streams import Stream
from postroad.telemetry import Auditor
from postroad.topics import Topic

Overflow = Literal["blobs", "fail"]

T = TypeVar("T")


class TopicStore(Protocol):
    """Makes and finds topics."""

    def topic(self, name: str, *, fifo: bool) -> Topic: ...
    def existing(self, name: str, *, fifo: bool) -> Topic: ...
    def topics(self) -> list[str]: ...
    def topics_without_subscriptions(self) -> list[str]: ...

    def subscribers(self, queues: Collection[str]) -> list[tuple[str, str]]:
        """Return each topic that one of these queues is subscribed to, with the queue, as far as it may be read."""
        ...


class StreamStore(Protocol):
    """Makes and finds streams."""

    def stream(self, name: str, *, shards: int, retention: float) -> Stream: ...


@runtime_checkable
class ListedStreams(Protocol):
    """A store of streams that can list them."""

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        ...


class QueueTags(Protocol):
    """Signs of life on queues, for stores that do not remove abandoned queues by themselves."""

    def renew(self, name: str, *, seconds: float) -> None:
        """Record that the owner of the queue is alive, for so many seconds from now."""
        ...

    def abandoned(self, prefix: str, *, seconds: float) -> list[str]:
        """Return the queues under this prefix whose owner is gone; one without a sign gets `seconds` to give it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """One adapter of each port, with the clock and the registry that they share.

    The adapter of a third party gets the ports of the embedded file and returns them with its own in place.

    Attributes:
        queues: Makes, finds and lists queues.
        topics: Makes, finds and lists topics.
        streams: Makes and finds streams.
        items: Holds small values under conditional writes.
        blobs: Holds large bodies; None where none are configured.
        journal: Holds what happened to tasks and jobs.
        clock: The clock that all of them read.
        registry: Holds the event classes of the program.

    Example:
        dataclasses.replace(ports, queues=RedisQueues(url))
    """

    queues: QueueStore
    topics: TopicStore
    streams: StreamStore
    items: Items
    blobs: Blobs | None
    journal: Journal
    clock: Clock
    registry: EventRegistry


TASK_DIRECTORY: Final = "postroad-tasks-"
"""How the name of the directory begins in which the tasks of a worker run, and which is removed after them."""


class Store(Protocol):
    """A backend as the code below `wiring` knows it: it opens queues, topics and streams by name."""

    clock: Clock
    registry: EventRegistry

    @property
    def url(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def stage_prefix(self) -> str: ...
    @property
    def joins_writes(self) -> bool:
        """Whether writes to all ports inside `transaction()` commit together."""
        ...

    def create_queue(self, spec: QueueSpec) -> Queue: ...
    def update_queue(self, spec: QueueSpec) -> Queue: ...
    def delete_queue(self, name: str) -> None: ...
    def queue(self, name: str) -> Queue: ...
    def queue_spec(self, name: str) -> QueueSpec: ...
    def queues(self) -> list[str]: ...
    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]: ...
    def sources(self, dead_letters: str) -> list[str]: ...
    def message_history(self) -> MessageHistory | None: ...
    def queue_tags(self) -> QueueTags | None: ...
    def audit_log(self) -> Auditor | None: ...
    def check_agents(self) -> bool: ...
    def topic(self, name: str, fifo: bool = False, *, overflow: Overflow | None = None) -> Topic: ...
    def topics_without_subscriptions(self) -> list[str]: ...
    def stream(self, name: str, shards: int = 4, retention: float = 86_400) -> Stream: ...
    def items(self) -> Items: ...
    def blobs(self) -> Blobs | None: ...
    def journal(self) -> Journal: ...
    def transaction(self) -> AbstractContextManager[None]: ...
    def together(self, unit: Callable[[], T], *, removes: bool = False) -> T: ...
