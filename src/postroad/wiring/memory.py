"""The memory of this process as a ground: for tests, and for nothing that must outlive them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from postroad.blobs.memory import MemoryBlobs
from postroad.clock import Clock
from postroad.errors import NotSupported
from postroad.items.memory import MemoryItems
from postroad.journal.memory import MemoryRecords
from postroad.journal.overflow import Overflow
from postroad.journal.stored import StoredJournal
from postroad.queues import Queue
from postroad.queues.memory import MemoryQueues
from postroad.settings import default_stage, events_ttl_days
from postroad.streams import Stream
from postroad.streams.memory import MemoryStreams
from postroad.topics.memory import MemoryTopics
from postroad.wiring.scratch import Scratch

if TYPE_CHECKING:
    from postroad.agents.port import AgentStore, Mover
    from postroad.agents.settings import AgentSettings
    from postroad.bus.stores import QueueTags
    from postroad.connections.compaction import Compaction
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
        self.queues = MemoryQueues(clock)
        self.topics = self.bus_topics = MemoryTopics(self.queues)
        self.streams = MemoryStreams(clock)
        self.items = MemoryItems()
        self.blobs = MemoryBlobs(clock)
        self._records = MemoryRecords()
        self.journal = StoredJournal(self._records, Overflow(self.blobs), clock=clock, ttl_days=events_ttl_days())

    def queue_tags(self) -> QueueTags | None:
        """None: abandoned queues are removed by the store itself."""
        return None

    def agent_store(self, settings: AgentSettings, rejected: Callable[[], Queue]) -> tuple[AgentStore, Stream]:
        from postroad.agents.sqlite.store import SQLiteAgentStore

        # First the stream, which a closed memory refuses: nobody would remove the file.
        stream = self.streams.stream(settings.stream, shards=4, retention=86_400)
        if self._scratch is None:
            self._scratch = Scratch(self._clock)
        return SQLiteAgentStore(self._scratch.engine, stream, rejected, settings, durable=False), stream

    def check_agents(self, mover: Mover) -> bool:
        """True: agents need nothing beside the store, and whoever runs it moves their events."""
        return True

    def site(self) -> Site:
        from postroad.topology.embedded import EmbeddedSite, EmbeddedStores

        stores = EmbeddedStores(self.queues, self.topics, self.streams, self.items, nullcontext)
        return EmbeddedSite(stores)

    def transaction(self) -> AbstractContextManager[None]:
        raise NotSupported("memory has no transactions; use the embedded engine (sqlite:///path)")

    def check(self) -> None:
        """Memory is there until it is closed."""
        self.queues.queues()

    def compact(self, *, rebuild: bool, progress: object) -> Compaction:
        raise NotSupported("memory has no file; there is nothing to compact")

    def close(self) -> None:
        """Refuse every use from now on; closing twice changes nothing."""
        for store in (self.queues, self.streams, self.items, self.blobs, self._records):
            store.close()
        if self._scratch is not None:
            self._scratch.close()
