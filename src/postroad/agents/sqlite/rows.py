"""Rows of a lane, and the messages made of them."""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from postroad.agents.delivery import Message, encode
from postroad.agents.rules import time_text
from postroad.agents.sqlite.names import Ids
from postroad.agents.sqlite.receipts import MessageIds
from postroad.engine import one, text_of

_EVENT: Final = """
SELECT event.producer, CAST(event_id AS BLOB), CAST(type AS BLOB), occurred_ms, arrived_us, expires_us,
    CAST(sequence AS BLOB), CAST(traceparent AS BLOB), crc, data, coalesce(held.late, 0)
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
    error: str | bytes | None
    replay: int
    aside: bool


class StoredEvent(NamedTuple):
    """An event as the file has it; its texts are bytes until it is known that they can be decoded."""

    producer: int
    event_id: bytes
    type: bytes
    occurred_ms: int
    arrived_us: int
    expires_us: int
    sequence: bytes
    traceparent: bytes | None
    crc: int
    data: bytes
    late: int

    @property
    def is_damaged(self) -> bool:
        """Whether it is not what was published."""
        try:
            for text in (self.event_id, self.type, self.sequence, self.traceparent or b""):
                text.decode()
        except UnicodeDecodeError:
            return True
        return checksum(self.data) != self.crc


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
        """The event as the message that the lane's agent receives; of a damaged one what is left of its data."""
        if event.is_damaged:
            return event.data
        return encode(
            Message(
                agentId=self._ids.of(connection, event.producer),
                timestamp=time_text(event.occurred_ms),
                eventType=event.type.decode(),
                data=msgspec.Raw(event.data),
                eventId=event.event_id.decode(),
                subscriberId=self._ids.of(connection, lane),
                sequenceNumber=event.sequence.decode(),
                late=bool(event.late),
                replay=replay,
                traceparent=text_of(event.traceparent),
            )
        )

    def group(self, connection: apsw.Connection, lane: int, group: int) -> str:
        """The name of a group: a producer's id, or the agent's own."""
        return self._ids.of(connection, group or lane)


def checksum(data: bytes) -> int:
    """What tells changed data."""
    return zlib.crc32(data)
