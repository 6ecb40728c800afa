"""Parts of a store in memory, for tests that need no backend; a store lives as long as its parts."""

from __future__ import annotations

from typing import TypeVar

from postroad.blobs.directory import DirectoryBlobs
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.items.sqlite import SQLiteItems
from postroad.journal.sqlite import SQLiteRecords
from postroad.queues.sqlite import SQLiteQueues
from postroad.streams.sqlite import SQLiteStreams
from postroad.topics.sqlite import SQLiteTopics
from postroad.wiring.sqlite import SQLiteInstallation

Part = TypeVar("Part")


def memory_queues(clock: Clock = SYSTEM_CLOCK) -> SQLiteQueues:
    """Return queues in memory."""
    store = memory_store(clock)
    return _kept(store.queues, store)


def memory_topics(queues: SQLiteQueues) -> SQLiteTopics:
    """Return topics beside the queues."""
    return SQLiteTopics(queues.engine, queues)


def memory_streams(clock: Clock = SYSTEM_CLOCK) -> SQLiteStreams:
    """Return streams in memory."""
    store = memory_store(clock)
    return _kept(store.streams, store)


def memory_items() -> SQLiteItems:
    """Return items in memory."""
    store = memory_store()
    return _kept(store.items, store)


def memory_blobs(clock: Clock = SYSTEM_CLOCK) -> DirectoryBlobs:
    """Return blobs in memory."""
    store = memory_store(clock)
    return _kept(store.blobs, store)


def memory_records() -> SQLiteRecords:
    """Return the records of a journal in memory."""
    store = memory_store()
    return _kept(SQLiteRecords(store.queues.engine), store)


def memory_store(clock: Clock = SYSTEM_CLOCK) -> SQLiteInstallation:
    """Return all parts of a store in memory."""
    return SQLiteInstallation(None, clock=clock, trail_keep=1_000)


def _kept(part: Part, store: SQLiteInstallation) -> Part:
    """Keep the store alive as long as the part."""
    part.store_in_memory = store  # type: ignore[attr-defined]  # nobody reads it
    return part
