"""Rows of a lane, and the messages made of them."""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from postroad.agents.messages import Message, encode
from postroad.agents.rules import time_text
from postroad.agents.sqlite.names import Ids
from postroad.agents.sqlite.receipts import MessageIds
from postroad.connections.fetching import one
from postroad.errors import StorageDamaged

_EVENT: Final = """
SELECT event.producer, event_id, type, occurred_ms, arrived_us, expires_us, sequence, traceparent, crc, data,
    coalesce(held.late, 0)
FROM agent_event AS event LEFT JOIN agent_row AS held ON held.lane = ?1 AND held.place = event.place
WHERE event.place = ?2
"""


class Row(NamedTuple):
    """A message that may be given out: where it stands, and what its leases say of it."""

    turn: int
    place: int
    producer: int
    receives: int
    first_us: int | None
    error: str | None
    replay: int
    aside: bool


class StoredEvent(NamedTuple):
    """An event as the file has it."""

    producer: int
    event_id: str
    type: str
    occurred_ms: int
    arrived_us: int
    expires_us: int
    sequence: str
    traceparent: str | None
    crc: int
    data: bytes
    late: int


class Reader:
    """Reads events and makes messages of them."""

    def __init__(self, ids: Ids, message_ids: MessageIds) -> None:
        self._ids = ids
        self._message_ids = message_ids

    def event(self, connection: apsw.Connection, lane: int, place: int) -> StoredEvent | None:
        """The event at a place; None when it has expired and is gone."""
        row: Any = one(connection, _EVENT, (lane, place))
        return None if row is None else StoredEvent(*row)

    def message_id(self, lane: int, place: int) -> str:
        """The id of the lane's message at a place."""
        return self._message_ids.text(lane, place)

    def place(self, lane: int, message_id: str) -> int | None:
        """The place of a message id of this lane."""
        return self._message_ids.place(lane, message_id)

    def body(self, connection: apsw.Connection, lane: int, event: StoredEvent, *, replay: bool) -> bytes:
        """The event as the message that the lane's agent receives."""
        if checksum(event.data) != event.crc:
            raise StorageDamaged(f"event {event.event_id}: its stored data is not what was published")
        return encode(
            Message(
                agentId=self._ids.of(connection, event.producer),
                timestamp=time_text(event.occurred_ms),
                eventType=event.type,
                data=msgspec.Raw(event.data),
                eventId=event.event_id,
                subscriberId=self._ids.of(connection, lane),
                sequenceNumber=event.sequence,
                late=bool(event.late),
                replay=replay,
                traceparent=event.traceparent,
            )
        )

    def group(self, connection: apsw.Connection, lane: int, group: int) -> str:
        """The name of a group: a producer's id, or the agent's own."""
        return self._ids.of(connection, group or lane)


def checksum(data: bytes) -> int:
    """What tells changed data."""
    return zlib.crc32(data)
