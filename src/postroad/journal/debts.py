"""Items that change under a condition, each with the journal events that its change owes.

On the embedded engine one commit holds the item and its events. Elsewhere the item is written first and carries the
events until they are in the journal, so that the next process that reads the item can complete an interrupted write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from postroad.blobs import BlobRef, Blobs
from postroad.errors import BlobNotFound, ConfigurationError, PostroadError
from postroad.items import Expect, Item, Items
from postroad.journal.event import JournalEvent
from postroad.journal.port import Appends
from postroad.journal.store import StoredJournal, appending

_INLINE_BYTES = 150_000
_encode = msgspec.json.Encoder().encode


class Owing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of a record that holds the events it owes."""

    owed: list[dict[str, Any]] = []
    """Items of events that may not be in the journal yet."""
    owed_at: BlobRef | None = None
    """The blob that holds them if they are large."""

    @property
    def owes(self) -> bool:
        return bool(self.owed or self.owed_at)


Record = TypeVar("Record", bound=Owing)
Held = TypeVar("Held")


class OwingItems(Generic[Record, Held]):
    """Reads and writes the items of one type, and appends the events they owe to the journal.

    `held` makes what is returned: a record as it was read or written, with the version that the next write expects.
    """

    def __init__(
        self,
        kind: type[Record],
        held: Callable[[Record, int], Held],
        items: Items,
        blobs: Blobs | None,
        journal: Appends,
    ) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._held = held
        self._items = items
        self._blobs = blobs
        self._journal = journal

    def read(self, key: str) -> Held | None:
        item = self._items.get(key)
        return None if item is None else self.decoded(item)

    def put(self, key: str, record: Record, expect: int | Expect) -> tuple[bool, Held | None]:
        """Write the record if the item is as expected; return whether it was, and the record as it is now."""
        result = self._items.put(key, _encode(record), expect=expect)
        if result.item is None:
            return result.ok, None
        return result.ok, self._held(record, result.item.version) if result.ok else self.decoded(result.item)

    def decoded(self, item: Item) -> Held:
        return self._held(self._decode(item.value), item.version)

    def append(self, events: Sequence[JournalEvent]) -> None:
        """Append events that were created and so checked, or raise why one cannot be stored.

        Events that are stored already do not change.
        """
        self.prepared(events)(())

    def prepared(self, events: Sequence[JournalEvent]) -> Callable[[Sequence[JournalEvent]], None]:
        """Return a function that appends the events and those that it gets; it may run more than once."""
        journal = self._journal
        return journal.prepared(events) if isinstance(journal, StoredJournal) else appending(journal, events)

    def owing(self, record: Record, events: Sequence[JournalEvent], path: str) -> Record:
        """Return the record with exactly these owed events, in a blob at `path` if they are large."""
        owed = [event.to_item() for event in events]
        data = _encode(owed)
        if len(data) <= _INLINE_BYTES or self._blobs is None:
            return msgspec.structs.replace(record, owed=owed, owed_at=None)
        return msgspec.structs.replace(record, owed=[], owed_at=self._blobs.put(path, data))

    def owed(self, record: Record) -> list[JournalEvent]:
        items = record.owed
        if record.owed_at is not None:
            if self._blobs is None:
                # Without the blob these events cannot be recorded, and must not count as recorded.
                raise ConfigurationError(
                    "bucket: some events are still in a blob and not in the journal, and no bucket is named",
                    field="bucket",
                    remedy="Name the bucket that the other processes use: aws://region?bucket=NAME, or EVENTS_BUCKET.",
                )
            try:
                items = msgspec.json.decode(self._blobs.get(record.owed_at))
            except BlobNotFound:
                # It is deleted once its events are recorded.
                return []
        return [JournalEvent.from_item(item) for item in items]

    def forget(self, record: Record) -> None:
        """Delete the blob of events that are in the journal now."""
        if record.owed_at is not None and self._blobs is not None:
            with suppress(PostroadError):
                self._blobs.delete(record.owed_at)


def owing_nothing(record: Record) -> Record:
    return msgspec.structs.replace(record, owed=[], owed_at=None)
