"""Items that change under a condition, each with the journal events that its change owes.

Where one commit can hold item and events (the embedded engine), it does. Elsewhere the item is written first and
carries the events until they are in the journal, so that whoever looks at the item next makes a death in between good.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from postroad.blobs import BlobRef, Blobs
from postroad.errors import BlobNotFound, ConfigurationError, PostroadError
from postroad.items import Expect, Item, Items
from postroad.journal.event import JournalEvent
from postroad.journal.port import Appends

_INLINE_BYTES = 150_000
_encode = msgspec.json.Encoder().encode


class Owing(Protocol):
    """What an item holds: a Struct that has room for the events it owes."""

    @property
    def owed(self) -> list[dict[str, Any]]: ...
    @property
    def owed_at(self) -> BlobRef | None:
        """Where they lie when they are large."""
        ...


Record = TypeVar("Record", bound=Owing)


class Versioned(NamedTuple, Generic[Record]):
    """A record as it was read or written, with the version that the next write expects."""

    record: Record
    version: int


class OwingItems(Generic[Record]):
    """Reads and writes the items of one type, and brings what they owe into the journal."""

    def __init__(self, kind: type[Record], items: Items, blobs: Blobs | None, journal: Appends) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._items = items
        self._blobs = blobs
        self._journal = journal

    def read(self, key: str) -> Versioned[Record] | None:
        """The record under the key."""
        return self.decoded(self._items.get(key))

    def put(self, key: str, record: Record, expect: int | Expect) -> tuple[bool, Versioned[Record] | None]:
        """Write the record if it is still as expected; whether it was, and how it stands now."""
        result = self._items.put(key, _encode(record), expect=expect)
        return result.ok, self.decoded(result.item)

    def decoded(self, item: Item | None) -> Versioned[Record] | None:
        """The record of an item."""
        return None if item is None else Versioned(self._decode(item.value), item.version)

    def append(self, events: Sequence[JournalEvent]) -> None:
        """Append the events, or raise why one of them was refused. Those that are there already stay as they are."""
        for result in self._journal.append(events) if events else ():
            if result.error is not None:
                raise result.error

    def owing(self, record: Record, events: Sequence[JournalEvent], path: str) -> Record:
        """The record with these events as all that it owes, in a blob at `path` when they are large."""
        owed = [event.to_item() for event in events]
        data = _encode(owed)
        if len(data) <= _INLINE_BYTES or self._blobs is None:
            return _owing(record, owed, None)
        return _owing(record, [], self._blobs.put(path, data))

    def owed(self, record: Record) -> list[JournalEvent]:
        """The events that the record owes."""
        items = record.owed
        if record.owed_at is not None:
            try:
                items = msgspec.json.decode(self._needed_blobs().get(record.owed_at))
            except BlobNotFound:
                # It is deleted once its events are recorded.
                return []
        return [JournalEvent.from_item(item) for item in items]

    def forget(self, record: Record) -> None:
        """Delete the blob of events that are in the journal now."""
        if record.owed_at is not None and self._blobs is not None:
            with suppress(PostroadError):
                self._blobs.delete(record.owed_at)

    def _needed_blobs(self) -> Blobs:
        """The blobs; without them what lies there cannot be recorded, and must not be taken for recorded."""
        if self._blobs is None:
            raise ConfigurationError(
                "bucket: events that are not in the journal yet lie in a blob, and no bucket is named",
                field="bucket",
                remedy="Name the bucket that the other processes use: aws://region?bucket=NAME, or EVENTS_BUCKET.",
            )
        return self._blobs


def owes(record: Owing) -> bool:
    """Whether the record says that it owes events."""
    return bool(record.owed or record.owed_at)


def owing_nothing(record: Record) -> Record:
    """The record without what it owed."""
    return _owing(record, [], None)


def _owing(record: Record, owed: list[dict[str, Any]], at: BlobRef | None) -> Record:
    struct: Any = record
    changed: Record = msgspec.structs.replace(struct, owed=owed, owed_at=at)
    return changed
