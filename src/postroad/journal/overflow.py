"""Overflow: large properties are stored in a blob, and the item holds a pointer with its hash and size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import msgspec

from postroad.blobs import BlobRef, Blobs, reference
from postroad.errors import BlobNotFound, EventTooLarge, InvalidInput, OverflowMismatch, PostroadError, StorageDamaged
from postroad.journal.event import OVERFLOW, JournalEvent
from postroad.journal.port import Entry

MAX_ITEM_BYTES: Final = 204_800
SMALL_BYTES: Final = MAX_ITEM_BYTES - 16_384
"""A body of this size always fits: keys and names take less than the rest, whatever the ids."""
_FIRST: Final = (
    *("output", "outputs", "input", "claudeOutput"),
    *("tasks", "newTasks", "taskStatuses", "dependencyOutputs"),
)


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pointer to a blob in an item."""

    bucket: str
    key: str
    sha256: str
    size: int


class Overflow:
    """Moves properties of large events into blobs and back."""

    def __init__(self, blobs: Blobs | None) -> None:
        self._blobs = blobs

    def pack(self, entry: Entry) -> Entry:
        """Return the entry so that it fits into an item; the blob is not stored yet."""
        event = entry.event
        if len(entry.body) <= SMALL_BYTES or (size := _json_bytes(event)) <= MAX_ITEM_BYTES:
            return entry
        if self._blobs is None:
            raise _too_large(event, f"{size:,} bytes of JSON exceed {MAX_ITEM_BYTES:,}, and there are no blobs")
        moved = {name: event.properties[name] for name in _chosen(event, self._blobs.bucket)}
        payload = msgspec.json.encode(moved)
        kept = {name: value for name, value in event.properties.items() if name not in moved}
        kept[OVERFLOW] = _pointer(event, self._blobs.bucket, payload)
        return Entry.of(msgspec.structs.replace(event, properties=kept), payload)

    def store(self, entry: Entry) -> None:
        """Store the blob of the entry, if it has one."""
        if entry.payload is not None and self._blobs is not None:
            self._blobs.put(blob_key(entry.event.entity_id, entry.event.event_id), entry.payload)

    def unpack(self, event: JournalEvent) -> JournalEvent:
        """Return the event with all its properties, or raise `OverflowMismatch`."""
        if OVERFLOW not in event.properties:
            return event
        if self._blobs is None:
            raise _mismatch(event, "there are no blobs to read it from")
        pointer = checked_pointer(event, self._blobs.bucket)
        try:
            data = self._blobs.get(BlobRef(key=pointer.key, size=pointer.size, sha256=pointer.sha256))
            moved = msgspec.json.decode(data, type=dict[str, Any])
        except (BlobNotFound, StorageDamaged, InvalidInput, msgspec.MsgspecError) as error:
            raise _mismatch(event, str(error)) from error
        properties = {name: value for name, value in event.properties.items() if name != OVERFLOW} | moved
        return msgspec.structs.replace(event, properties=properties)

    def unpack_or_note(self, event: JournalEvent) -> JournalEvent:
        """Return the event with all its properties, or with an `overflow_error` if its blob is not what was stored."""
        try:
            return self.unpack(event)
        except OverflowMismatch as error:
            return msgspec.structs.replace(event, overflow_error=error.message)

    def forget(self, event: JournalEvent) -> None:
        """Delete the blob of a removed event; a blob that cannot be deleted does no harm."""
        if OVERFLOW not in event.properties or self._blobs is None:
            return
        with suppress(PostroadError):
            pointer = checked_pointer(event, self._blobs.bucket)
            self._blobs.delete(BlobRef(key=pointer.key, size=pointer.size, sha256=pointer.sha256))


def blob_key(entity_id: str, event_id: UUID) -> str:
    return f"events/{entity_id}/{event_id}-payload.json"


def checked_pointer(event: JournalEvent, bucket: str | None) -> Pointer:
    """Return the event's pointer, or raise `OverflowMismatch` if it is not valid. `bucket` None accepts any bucket."""
    try:
        pointer = msgspec.convert(event.properties[OVERFLOW], Pointer)
    except msgspec.ValidationError as error:
        raise _mismatch(event, f"its pointer cannot be read: {error}") from None
    if pointer.key != blob_key(event.entity_id, event.event_id) or bucket not in (None, pointer.bucket):
        raise _mismatch(event, "its pointer names another blob")
    return pointer


def _pointer(event: JournalEvent, bucket: str, payload: bytes) -> dict[str, Any]:
    try:
        ref = reference(blob_key(event.entity_id, event.event_id), payload)
    except InvalidInput as error:
        raise _too_large(event, f"its properties cannot be put into a blob: {error}") from error
    return {"bucket": bucket, "key": ref.key, "sha256": ref.sha256, "size": ref.size}


def _json_bytes(event: JournalEvent) -> int:
    return len(msgspec.json.encode(event.to_item()))


def _chosen(event: JournalEvent, bucket: str) -> Iterator[str]:
    """Yield the properties to move until the rest fits: those that are known to grow, then the largest."""
    sizes = {name: len(msgspec.json.encode({name: value})) - 1 for name, value in event.properties.items()}
    pointer = _pointer(event, bucket, bytes(MAX_ITEM_BYTES))
    left = _json_bytes(msgspec.structs.replace(event, properties={OVERFLOW: pointer})) + sum(sizes.values())
    ranks = {name: rank for rank, name in enumerate(_FIRST)}
    for name in sorted(sizes, key=lambda name: (ranks.get(name, len(ranks)), -sizes[name])):
        if left <= MAX_ITEM_BYTES:
            return
        left -= sizes[name]
        yield name
    if left > MAX_ITEM_BYTES:
        raise _too_large(event, f"without its properties its JSON has {left:,} bytes, more than {MAX_ITEM_BYTES:,}")


def _too_large(event: JournalEvent, why: str) -> EventTooLarge:
    return EventTooLarge(f"event {event.event_id}: {why}", field="properties")


def _mismatch(event: JournalEvent, why: str) -> OverflowMismatch:
    return OverflowMismatch(f"event {event.event_id}: {why}", event_id=event.event_id)
