"""Envelopes as JSON Lines in blobs, for whoever wants to load them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from postroad.blobs import BlobRef, Blobs
from postroad.events import Envelope, uuid7

_MOST_BYTES = 8_388_608


def export(
    envelopes: Iterable[Envelope], blobs: Blobs, *, topic: str, encode: Callable[[Envelope], bytes]
) -> list[BlobRef]:
    """Write each event once; the blobs of one export have names of their own and hold up to 8 MiB or one event."""
    folder = f"export/topic={topic.removesuffix('.fifo')}/{uuid7().hex}"
    lines = _lines(envelopes, encode)
    return [blobs.put(f"{folder}/{number:06d}.jsonl", data) for number, data in enumerate(_files(lines))]


def _lines(envelopes: Iterable[Envelope], encode: Callable[[Envelope], bytes]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for envelope in envelopes:
        if envelope.event_id.bytes not in seen:
            seen.add(envelope.event_id.bytes)
            yield encode(envelope) + b"\n"


def _files(lines: Iterable[bytes]) -> Iterator[bytes]:
    gathered = bytearray()
    for line in lines:
        if gathered and len(gathered) + len(line) > _MOST_BYTES:
            yield bytes(gathered)
            gathered.clear()
        gathered += line
    if gathered:
        yield bytes(gathered)
