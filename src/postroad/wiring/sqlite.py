"""One SQLite file as a ground, with a directory of blobs beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.blobs import Blobs
from postroad.blobs.directory import DirectoryBlobs
from postroad.clock import Clock
from postroad.connections.engine import Engine
from postroad.items import Items
from postroad.items.sqlite import SQLiteItems
from postroad.journal import Journal
from postroad.journal.overflow import Overflow
from postroad.journal.sqlite import SQLiteRecords
from postroad.journal.stored import StoredJournal
from postroad.queues import Queue, QueueSpec
from postroad.queues.sqlite import SQLiteQueues
from postroad.settings import default_stage
from postroad.streams import Stream
from postroad.streams.sqlite import SQLiteStreams
from postroad.topics import Topic
from postroad.topics.sqlite import SQLiteTopics

if TYPE_CHECKING:
    from postroad.agents.port import AgentStore
    from postroad.agents.settings import AgentSettings
    from postroad.bus.stores import QueueTags
    from postroad.topology.site import Site


class SQLiteGround:
    """Everything in one file."""

    kind = "sqlite"
    stage_prefix = ""

    def __init__(self, path: Path, *, clock: Clock, trail_keep: int) -> None:
        self.stage = default_stage()
        self.url = f"sqlite:///{path}"
        self._engine = Engine(path, clock=clock)
        try:
            self._queues = SQLiteQueues(self._engine, trail_keep=trail_keep)
            self._topics = SQLiteTopics(self._engine, self._queues)
            self._streams = SQLiteStreams(self._engine)
            self._items = SQLiteItems(self._engine)
            records = SQLiteRecords(self._engine)
        except BaseException:
            self._engine.close()
            raise
        self._blobs = DirectoryBlobs(path.with_name(f"{path.name}.blobs"), clock)
        self._journal = StoredJournal(records, Overflow(self._blobs), clock=clock)

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

        stream = self._streams.stream(settings.stream, shards=4, retention=86_400)
        return SQLiteAgentStore(self._engine, stream, rejected, settings), stream

    def site(self) -> Site:
        from postroad.topology.embedded import EmbeddedSite, EmbeddedStores

        stores = EmbeddedStores(self._queues, self._topics, self._streams, self._items, self._engine.transaction)
        return EmbeddedSite(stores)

    def transaction(self) -> AbstractContextManager[None]:
        return self._engine.transaction()

    def check(self) -> None:
        self._engine.write(lambda tx: None, durable=False, relieves=False)

    def close(self) -> None:
        self._engine.close()
