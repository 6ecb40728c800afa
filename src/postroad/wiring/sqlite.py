"""One SQLite file as a ground, with a directory of blobs beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.blobs.directory import DirectoryBlobs
from postroad.clock import Clock
from postroad.connections.compaction import Compaction, compact
from postroad.connections.engine import Engine
from postroad.errors import NotSupported
from postroad.items.sqlite import SQLiteItems
from postroad.journal.overflow import Overflow
from postroad.journal.sqlite import SQLiteRecords
from postroad.journal.stored import StoredJournal
from postroad.queues import Queue
from postroad.queues.sqlite import SQLiteQueues
from postroad.settings import default_stage, events_ttl_days
from postroad.streams import Stream
from postroad.streams.sqlite import SQLiteStreams
from postroad.topics.sqlite import SQLiteTopics
from postroad.wiring.scratch import Scratch
from postroad.wiring.url import file_url

if TYPE_CHECKING:
    from postroad.agents.port import AgentStore, Mover
    from postroad.agents.settings import AgentSettings
    from postroad.bus.groups import QueueTags
    from postroad.topology.site import Site


class SQLiteGround:
    """Everything in one file; without a path in a file of this process alone, which is gone when it is closed."""

    stage_prefix = ""

    def __init__(self, path: Path | None, *, clock: Clock, trail_keep: int) -> None:
        self.stage = default_stage()
        # Before the file is opened, so that a wrong one leaves nothing behind.
        ttl_days = events_ttl_days()
        self._scratch = Scratch() if path is None else None
        self.kind = "sqlite" if self._scratch is None else "memory"
        place = path if self._scratch is None else self._scratch.path / "memory.db"
        assert place is not None
        self._engine = Engine(place, clock=clock, durable=self._scratch is None)
        self._engine.place = self._scratch
        path = self._engine.path
        self.url = file_url(path) if self._scratch is None else "memory://"
        try:
            self.queues = SQLiteQueues(self._engine, trail_keep=trail_keep)
            self.topics = self.bus_topics = SQLiteTopics(self._engine, self.queues)
            self.streams = SQLiteStreams(self._engine)
            self.items = SQLiteItems(self._engine)
            records = SQLiteRecords(self._engine)
            blobs = path.with_name(f"{path.name}.blobs")
            self.blobs = DirectoryBlobs(blobs, clock, read_only=self._engine.read_only)
        except BaseException:
            self._close_file()
            raise
        self.journal = StoredJournal(records, Overflow(self.blobs), clock=clock, ttl_days=ttl_days)

    def queue_tags(self) -> QueueTags | None:
        """None: abandoned queues are removed by the store itself."""
        return None

    def agent_store(self, settings: AgentSettings, rejected: Callable[[], Queue]) -> tuple[AgentStore, Stream]:
        from postroad.agents.sqlite.store import SQLiteAgentStore

        stream = self.streams.stream(settings.stream, shards=4, retention=86_400)
        return SQLiteAgentStore(self._engine, stream, rejected, settings, durable=self._engine.durable), stream

    def check_agents(self, mover: Mover) -> bool:
        """True: agents need nothing beside the store, and whoever runs it moves their events."""
        return True

    def site(self) -> Site:
        from postroad.topology.embedded import EmbeddedSite, EmbeddedStores

        stores = EmbeddedStores(self.queues, self.topics, self.streams, self.items, self._engine.transaction)
        return EmbeddedSite(stores)

    def transaction(self) -> AbstractContextManager[None]:
        return self._engine.transaction()

    def check(self) -> None:
        self._engine.check()

    def compact(self, *, rebuild: bool, progress: Callable[[Compaction], None] | None) -> Compaction:
        if self._scratch is not None:
            raise NotSupported("memory has no file that outlives it; there is nothing to compact")
        return compact(self._engine, rebuild=rebuild, progress=progress)

    def close(self) -> None:
        self.blobs.close()
        self._close_file()

    def _close_file(self) -> None:
        self._engine.close()
        if self._scratch is not None:
            self._scratch.close()
