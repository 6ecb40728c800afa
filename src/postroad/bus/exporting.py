"""Envelopes as JSON Lines in blobs, for whoever wants to load them elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from postroad.blobs import BlobRef, Blobs
from postroad.bus.archived import ArchivedEvent
from postroad.events import uuid7

_MOST_BYTES = 8_388_608


def export(events: Iterable[ArchivedEvent], blobs: Blobs, *, topic: str) -> list[BlobRef]:
    """Write each event once; the blobs of one export have names of their own and hold up to 8 MiB or one event."""
    folder = f"export/topic={topic.removesuffix('.fifo')}/{uuid7().hex}"
    files = enumerate(_files(_lines(events)))
    return [blobs.put(f"{folder}/{number:06d}.jsonl", data) for number, data in files]


def _lines(events: Iterable[ArchivedEvent]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for each in events:
        event_id = each.envelope.event_id.bytes
        if event_id not in seen:
            seen.add(event_id)
            # A body that somebody wrote over several lines becomes one.
            yield msgspec.json.format(each.body, indent=-1) + b"\n"


def _files(lines: Iterable[bytes]) -> Iterator[bytes]:
    gathered = bytearray()
    for line in lines:
        if gathered and len(gathered) + len(line) > _MOST_BYTES:
            yield bytes(gathered)
            gathered.clear()
        gathered += line
    if gathered:
        yield bytes(gathered)
