"""What happened to the messages of the embedded queues: where each is now, and what the trail remembers of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import apsw

from postroad.engine import Engine, every, moment, one, text_of
from postroad.queues.match import EVENT_ID_WITHIN, event_id as event_in
from postroad.queues.port import Located, PeekedMessage, Settled
from postroad.queues.sqlite.state import (
    COLUMNS,
    ENTRY,
    JOINED,
    MessageIds,
    Row,
    id_range,
    message_state,
    salvaged_attributes,
)

_SETTLED: Final = """
SELECT at_us, kind, entries, CAST(detail AS BLOB), CAST(name AS BLOB)
FROM trail LEFT JOIN queue ON queue.id = trail.queue
WHERE instr(entries, ?) ORDER BY n
"""
_TRACEBACK: Final = """
SELECT CAST(lines AS BLOB) FROM traceback WHERE message = ?1
AND (EXISTS (SELECT 1 FROM message WHERE id = ?1) OR EXISTS (SELECT 1 FROM message WHERE origin = ?1))
"""
_EVENTS: Final = "SELECT entries, CAST(events AS BLOB) FROM trail WHERE instr(events, ?) ORDER BY n"
_LOCATED: Final = f"SELECT {COLUMNS}, coalesce(lease.visible_us, m.due_us, 0), coalesce(lease.held, 0) {JOINED}"
_MOVED: Final = f"{_LOCATED} WHERE m.origin = ?"
_UNMOVED: Final = f"{_LOCATED} WHERE m.id = ? AND m.origin IS NULL"
_NAME: Final = "SELECT CAST(name AS BLOB) FROM queue WHERE id = ?"
_HEAD: Final = "SELECT coalesce(origin, id), id FROM message WHERE grp = ? ORDER BY id LIMIT 1"
_CONTENT: Final = f"CAST(attributes AS BLOB), substr(body, 1, {EVENT_ID_WITHIN}) FROM message"
_CARRIES: Final = "(instr(body, ?1) OR instr(attributes, ?2))"
_AMONG_MOVED: Final = f"SELECT origin, {_CONTENT} WHERE origin IS NOT NULL AND {_CARRIES}"
_WITHIN: Final = f"SELECT id, {_CONTENT} WHERE id >= ?3 AND id < ?4 AND origin IS NULL AND {_CARRIES}"
_CAUSED: Final = f"""
SELECT {_CONTENT} WHERE instr(body, ?1) AND id IN (
    SELECT id FROM message WHERE id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4
)
"""  # noqa: S608 - a constant
_QUEUES: Final = "SELECT queue, next FROM tally"
_NEXT_FROM: Final = "SELECT id, sent_us FROM message WHERE id >= ? AND id < ? ORDER BY id LIMIT 1"
_MOST_LOOKED_AT: Final = 2_000
_ROW_BYTES: Final = 8
_EARLY_US: Final = 5_000_000
_LATE_US: Final = 60_000_000
_TIME_ORDERED: Final = 7


class History:
    """Reads where messages are and what happened to them; it changes nothing."""

    def __init__(self, engine: Engine, ids: MessageIds) -> None:
        self._engine = engine
        self._ids = ids

    def settled(self, message_id: str) -> list[Settled]:
        """Return what happened to a message, oldest first, as far back as the trail goes."""
        first_id = self._ids.row_id(message_id)
        if first_id is None:
            return []
        rows = self._engine.read(lambda connection: every(connection, _SETTLED, (first_id.to_bytes(_ROW_BYTES),)))
        return [
            Settled(
                what=kind,
                at=moment(at_us),
                queue=text_of(name),
                receives=receives,
                sent_at=moment(sent_us),
                first_received_at=moment(first_us) if first_us else None,
                detail=text_of(detail),
            )
            for at_us, kind, entries, detail, name in rows
            for row_id, receives, sent_us, first_us in ENTRY.iter_unpack(entries)
            if row_id == first_id
        ]

    def traceback(self, message_id: str) -> list[str]:
        """Return the last lines of the traceback with which a message failed last; none once it is settled."""
        first_id = self._ids.row_id(message_id)
        found = None if first_id is None else self._engine.read(lambda each: one(each, _TRACEBACK, (first_id,)))
        return [] if found is None else str(text_of(found[0])).splitlines()

    def located(self, message_id: str) -> Located | None:
        """Return where the message is; None if it was settled, or is not of this file."""
        first_id = self._ids.row_id(message_id)
        return None if first_id is None else self._engine.read(lambda connection: self._find(connection, first_id))

    def messages_of(self, event_id: str) -> list[str]:
        """Return the ids of the messages that carry the event, or carried it as far back as the trail goes.

        An id that holds its time is first looked for among the messages that were sent then. Only if it is not found
        there or in the trail, all messages are read.
        """

        def look(connection: apsw.Connection) -> list[int]:
            found = {*_in_trail(connection, event_id), *_carrying(connection, _AMONG_MOVED, event_id)}
            at_us = _time_of(event_id)
            if at_us is not None:
                found |= set(_sent_between(connection, event_id, at_us - _EARLY_US, at_us + _LATE_US))
            return sorted(found or _sent_between(connection, event_id, None, None))

        return [self._ids.text(row_id) for row_id in self._engine.read(look)]

    def caused_by(self, event_id: str) -> list[str]:
        """Return the ids of the events that the event caused, as far as their messages are still stored.

        Of each queue it looks at the messages that were sent after the event, up to a bound.
        """
        at_us, named = _time_of(event_id), f'"causation_id":"{event_id}"'.encode()

        def look(connection: apsw.Connection) -> list[str]:
            found: dict[str, None] = {}
            for queue_id, following in every(connection, _QUEUES):
                low = id_range(queue_id)[0]
                if at_us is not None:
                    low = _first_since(connection, low, following, at_us - _EARLY_US)
                for text, body in every(connection, _CAUSED, (named, low, following, _MOST_LOOKED_AT)):
                    if (caused := event_in(salvaged_attributes(text), body)) is not None:
                        found[caused] = None
            return list(found)

        return self._engine.read(look)

    def _find(self, connection: apsw.Connection, first_id: int) -> Located | None:
        found = one(connection, _MOVED, (first_id,)) or one(connection, _UNMOVED, (first_id,))
        if found is None:
            return None
        *columns, visible_us, held = found
        row, now_us = Row(*columns), self._engine.monotonic_us()
        message = PeekedMessage(
            self._ids.text(first_id),
            row.body,
            salvaged_attributes(row.attributes),
            text_of(row.group_name),
            row.receives,
            moment(row.sent_us),
            row.id,
            message_state(visible_us, held, now_us),
        )
        head = None if row.grp is None else one(connection, _HEAD, (row.grp,))
        ended_us = self._engine.now_us() - (now_us - visible_us) if held and visible_us <= now_us else None
        return Located(
            queue=str(text_of(one(connection, _NAME, (row.id >> 40,))[0])),
            message=message,
            first_received_at=None if row.first_us is None else moment(row.first_us),
            due_seconds=max(0.0, (visible_us - now_us) / 1_000_000),
            error=text_of(row.error),
            head=None if head is None or head[1] == row.id else self._ids.text(head[0]),
            lease_ended_at=None if ended_us is None else moment(ended_us),
        )


def _in_trail(connection: apsw.Connection, event_id: str) -> Iterator[int]:
    """Yield the messages of the event that were settled."""
    for entries, events in every(connection, _EVENTS, (f":{event_id}",)):
        first_ids = [first_id for first_id, *_ in ENTRY.iter_unpack(entries)]
        for place, _, name in (each.partition(":") for each in str(text_of(events)).split(" ")):
            if name == event_id:
                yield first_ids[int(place)]


def _sent_between(
    connection: apsw.Connection, event_id: str, from_us: int | None, until_us: int | None
) -> Iterator[int]:
    """Yield the messages of the event that were sent between these times and not moved since."""
    for queue_id, following in every(connection, _QUEUES):
        low, high = id_range(queue_id)[0], following
        if from_us is not None:
            low = _first_since(connection, low, high, from_us)
        if until_us is not None:
            high = _first_since(connection, low, high, until_us)
        if low < high:
            yield from _carrying(connection, _WITHIN, event_id, low, high)


def _first_since(connection: apsw.Connection, low: int, high: int, since_us: int) -> int:
    """Return an id from which on messages were sent at this time or later; times grow with the ids."""
    end = high
    while low < high:
        middle = (low + high) // 2
        row = one(connection, _NEXT_FROM, (middle, end))
        if row is None or row[1] >= since_us:
            high = middle
        else:
            low = row[0] + 1
    return low


def _carrying(connection: apsw.Connection, statement: str, event_id: str, *bounds: int) -> Iterator[int]:
    """Yield the messages that carry the event, and not only its id somewhere in their content."""
    rows: list[Any] = every(connection, statement, (event_id.encode(), event_id, *bounds))
    for first_id, text, body in rows:
        attributes = salvaged_attributes(text)
        if event_id in (event_in(attributes, body), attributes.get("PushId")):
            yield first_id


def _time_of(event_id: str) -> int | None:
    """Return the time that the id holds, if it is a UUID of version 7."""
    try:
        found = UUID(event_id)
    except ValueError:
        return None
    return (found.int >> 80) * 1_000 if found.version == _TIME_ORDERED else None
