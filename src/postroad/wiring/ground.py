"""What a store offers to stand on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from postroad.blobs import Blobs
from postroad.items import Items
from postroad.journal import Journal
from postroad.queues import Queue
from postroad.queues.port import ListedQueues
from postroad.streams import Stream
from postroad.topics import Topic

if TYPE_CHECKING:
    from postroad.agents.port import AgentStore, Mover
    from postroad.agents.settings import AgentSettings
    from postroad.bus.groups import QueueTags
    from postroad.connections.compaction import Compaction
    from postroad.topology.site import Site


class TopicStore(Protocol):
    """Makes and finds topics."""

    def topic(self, name: str, *, fifo: bool) -> Topic: ...
    def existing(self, name: str, *, fifo: bool) -> Topic: ...
    def topics(self) -> list[str]: ...
    def topics_without_subscriptions(self) -> list[str]: ...


class StreamStore(Protocol):
    """Makes and finds streams."""

    def stream(self, name: str, *, shards: int, retention: float) -> Stream: ...


class Ground(Protocol):
    """Memory, one SQLite file, or AWS: its stores, and what they do together."""

    url: str
    kind: str
    stage: str
    stage_prefix: str

    @property
    def queues(self) -> ListedQueues: ...
    @property
    def topics(self) -> TopicStore: ...
    @property
    def bus_topics(self) -> TopicStore:
        """The same topics for a bus, which retries by itself: their publish makes each call once."""
        ...

    @property
    def streams(self) -> StreamStore: ...
    @property
    def items(self) -> Items: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def blobs(self) -> Blobs | None: ...
    def queue_tags(self) -> QueueTags | None: ...
    def site(self) -> Site: ...
    def agent_store(
        self, settings: AgentSettings, rejected: Callable[[], Queue]
    ) -> tuple[AgentStore, Stream]: ...  # fmt: skip
    def check_agents(self, mover: Mover) -> bool: ...
    def transaction(self) -> AbstractContextManager[None]: ...
    def check(self) -> None: ...
    def compact(self, *, rebuild: bool, progress: Callable[[Compaction], None] | None) -> Compaction: ...
    def close(self) -> None: ...
