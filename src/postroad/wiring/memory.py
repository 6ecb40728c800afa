"""The memory of this process as a ground: for tests, and for nothing that must outlive them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from postroad.blobs import Blobs
from postroad.blobs.memory import MemoryBlobs
from postroad.clock import Clock
from postroad.errors import NotSupported
from postroad.items import Items
from postroad.items.memory import MemoryItems
from postroad.journal import Journal
from postroad.journal.memory import MemoryRecords
from postroad.journal.overflow import Overflow
from postroad.journal.stored import StoredJournal
from postroad.queues import Queue, QueueSpec
from postroad.queues.memory import MemoryQueues
from postroad.settings import default_stage
from postroad.streams import Stream
from postroad.streams.memory import MemoryStreams
from postroad.topics import Topic
from postroad.topics.memory import MemoryTopics
from postroad.wiring.scratch import Scratch

if TYPE_CHECKING:
    from postroad.agents.port import AgentStore
    from postroad.agents.settings import AgentSettings
    from postroad.bus.stores import QueueTags
    from postroad.topology.site import Site


class MemoryGround:
    """Everything in dictionaries."""

    url = "memory://"
    kind = "memory"
    stage_prefix = ""

    def __init__(self, clock: Clock) -> None:
        self.stage = default_stage()
        self._clock = clock
        self._scratch: Scratch | None = None
        self._queues = MemoryQueues(clock)
        self._topics = MemoryTopics(self._queues)
        self._streams = MemoryStreams(clock)
        self._items = MemoryItems()
        self._blobs = MemoryBlobs(clock)
        self._journal = StoredJournal(MemoryRecords(), Overflow(self._blobs), clock=clock)

    def create_queue(self, spec: QueueSpec) -> Queue:
        return self._queues.create_queue(spec)

    def update_queue(self, spec: QueueSpec) -> Queue:
        return self._queues.update_queue(spec)

    def delete_queue(self, name: str) -> None:
        self._queues.delete_queue(name)

    def queue(self, name: str) -> Queue:
        return self._queues.queue(name)

    def queue_spec(self, name: str) -> QueueSpec:
        return self._queues.queue_spec(name)

    def queues(self) -> list[str]:
        return self._queues.queues()

    def topic(self, name: str, *, fifo: bool) -> Topic:
        return self._topics.topic(name, fifo=fifo)

    def topics(self) -> list[str]:
        return self._topics.topics()

    def stream(self, name: str, *, shards: int, retention: float) -> Stream:
        return self._streams.stream(name, shards=shards, retention=retention)

    def items(self) -> Items:
        return self._items

    def journal(self) -> Journal:
        return self._journal

    def blobs(self) -> Blobs | None:
        return self._blobs

    def queue_tags(self) -> QueueTags | None:
        """None: abandoned queues are removed by the store itself."""
        return None

    def agent_store(self, settings: AgentSettings, rejected: Callable[[], Queue]) -> tuple[AgentStore, Stream]:
        from postroad.agents.sqlite.store import SQLiteAgentStore

        if self._scratch is None:
            self._scratch = Scratch(self._clock)
        stream = self._streams.stream(settings.stream, shards=4, retention=86_400)
        return SQLiteAgentStore(self._scratch.engine, stream, rejected, settings, durable=False), stream

    def site(self) -> Site:
        from postroad.topology.embedded import EmbeddedSite, EmbeddedStores

        stores = EmbeddedStores(self._queues, self._topics, self._streams, self._items, nullcontext)
        return EmbeddedSite(stores)

    def transaction(self) -> AbstractContextManager[None]:
        raise NotSupported("memory has no transactions; use the embedded engine (sqlite:///path)")

    def check(self) -> None:
        """Memory is always there."""

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
