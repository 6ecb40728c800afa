"""Places: where an event stands in every order of the journal, by its time and then by its id."""

from __future__ import annotations

from uuid import UUID

import msgspec

_TIME_BYTES = 6
SIZE = _TIME_BYTES + 16
FIRST = b""
"""Before every place."""
LAST = b"\xff" * SIZE
"""Behind every place."""
_MAX_TIME = (1 << 8 * _TIME_BYTES) - 1


def place_of(timestamp: int, event_id: UUID) -> bytes:
    """The place of an event, as bytes that sort like (timestamp, event id)."""
    return (timestamp << 128 | event_id.int).to_bytes(SIZE, "big")


def before(timestamp: int) -> bytes:
    """A place behind everything earlier than this millisecond and before everything in it."""
    if timestamp <= 0:
        return FIRST
    return LAST if timestamp > _MAX_TIME else timestamp.to_bytes(_TIME_BYTES, "big")


def time_of(place: bytes) -> int:
    """The millisecond of a place."""
    return int.from_bytes(place[:_TIME_BYTES], "big")


def event_id_of(place: bytes) -> UUID:
    """The event id of a place."""
    # msgspec makes a UUID of 16 bytes in half the time of UUID(bytes=…).
    return msgspec.convert(place[_TIME_BYTES:], UUID)
