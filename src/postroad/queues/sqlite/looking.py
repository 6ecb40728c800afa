"""Reading a queue without touching it: peek, stats and what the counters say."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import apsw

from postroad.engine import every, one, text_of
from postroad.errors import InvalidInput, QueueNotFound
from postroad.queues.moves import Looked
from postroad.queues.port import MessageState, PeekedMessage, QueueStats
from postroad.queues.spec import QueueSpec
from postroad.queues.sqlite.claims import id_range
from postroad.queues.sqlite.rows import (
    COLUMNS,
    DAMAGED,
    ERROR,
    GROUP_AND_ATTRIBUTES,
    MAX_ID,
    MessageIds,
    Row,
    is_damaged,
    moment,
    salvaged_attributes,
)

_PEEKED: Final = f"""
SELECT {COLUMNS}, coalesce(lease.receives, 0), lease.first_us, {ERROR},
    coalesce(lease.visible_us, m.due_us, 0), coalesce(lease.held, 0)
FROM message AS m LEFT JOIN lease ON lease.id = m.id
"""  # noqa: S608 - COLUMNS is a constant
PEEK: Final = f"""
{_PEEKED}
WHERE m.id > ? AND m.id < ? AND m.sent_us > ? ORDER BY m.id LIMIT ?
"""
_MOVED: Final = "SELECT id FROM message WHERE origin = ? AND id > ? AND id < ?"
PEEK_THESE: Final = f"{_PEEKED} WHERE m.id IN (VALUES (?)) ORDER BY m.id"
_WALK: Final = f"""
SELECT m.id, m.sent_us, m.origin, {GROUP_AND_ATTRIBUTES}, coalesce(lease.receives, 0),
    coalesce(lease.visible_us, m.due_us, 0), coalesce(lease.held, 0)
FROM message AS m LEFT JOIN lease ON lease.id = m.id WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?
"""  # noqa: S608 - GROUP_AND_ATTRIBUTES is a constant
_WHEREABOUTS: Final = """
SELECT CAST(name AS BLOB) FROM queue WHERE id = (SELECT id >> 40 FROM message WHERE origin = ?1 UNION ALL
    SELECT id >> 40 FROM message WHERE id = ?1 LIMIT 1)
"""
_NEXT_OF_GROUPS: Final = """
SELECT 0, (SELECT min(visible_us) FROM grp WHERE grp.queue = tally.queue) FROM tally WHERE queue = ?
"""
_NEXT: Final = """
SELECT head < next, (SELECT min(visible_us) FROM lease WHERE lease.queue = tally.queue) FROM tally WHERE queue = ?
"""
_TALLY: Final = "SELECT size, expired FROM tally WHERE queue = ?"
_WAITING: Final = "SELECT held, count(*) FROM lease WHERE queue = ? AND visible_us > ? GROUP BY held"
_FIFO_DELAYED: Final = """
SELECT count(*) FROM message WHERE id > coalesce(
    (SELECT max(id) FROM message WHERE id > ?1 AND id < ?2 AND (due_us IS NULL OR due_us <= ?3)), ?1) AND id < ?2
"""
_FIRST: Final = "SELECT sent_us FROM message WHERE id > ? AND id < ? ORDER BY id LIMIT 1"
_OLDEST_MOVED: Final = "SELECT min(sent_us) FROM message WHERE id >> 40 = ? AND origin IS NOT NULL"


def oldest_us(connection: apsw.Connection, *, queue_id: int) -> int | None:
    """When the queue's oldest message was sent. Messages stand in that order, but for those that were moved here."""
    first = one(connection, _FIRST, id_range(queue_id))
    if first is None:
        return None
    moved = one(connection, _OLDEST_MOVED, (queue_id,))[0]
    return int(first[0]) if moved is None else min(int(first[0]), int(moved))


def next_due_us(connection: apsw.Connection, *, queue_id: int, fifo: bool) -> int | None:
    """When, on the monotonic clock, something may be received; 0 for now, None for not before the next send."""
    row = one(connection, _NEXT_OF_GROUPS if fifo else _NEXT, (queue_id,))
    if row is None:
        raise QueueNotFound("the queue was deleted")
    fresh, returned = row
    return 0 if fresh else returned


def find_position(connection: apsw.Connection, ids: MessageIds, queue_id: int, after: object) -> int:
    """The row behind which to go on: a message id, or the sequence of a message that may be gone."""
    low, high = id_range(queue_id)
    if after is None:
        return low
    if isinstance(after, str) and after.isdecimal() and len(after) <= 19:
        return max(low, min(int(after), MAX_ID))
    first_id = ids.row_id(after) if isinstance(after, str) else None
    if first_id is None:
        raise InvalidInput(f"after: {after!r} is not a message id of this backend", field="after")
    # A message that was redriven stands where it came to last, not where it was sent first.
    moved = one(connection, _MOVED, (first_id, low, high))
    if moved is None and not low < first_id < high:
        raise InvalidInput(f"after: message {after} is not in this queue", field="after")
    return first_id if moved is None else int(moved[0])


def peek(
    connection: apsw.Connection, ids: MessageIds, queue_id: int, *, position: int, limit: int, oldest_us: int, now: int
) -> list[PeekedMessage]:
    """Up to `limit` messages behind the position, sent after `oldest_us`; `now` is the monotonic clock's."""
    found = every(connection, PEEK, (position, id_range(queue_id)[1], oldest_us, limit))
    return [peeked(ids, Row(*columns), visible_us, held, now) for *columns, visible_us, held in found]


def walk(
    connection: apsw.Connection, ids: MessageIds, queue_id: int, *, cursor: str | None, limit: int, now: int
) -> Looked:
    """Up to `limit` messages behind the cursor, without their bodies; `now` is the monotonic clock's."""
    position = find_position(connection, ids, queue_id, cursor)
    found = every(connection, _WALK, (position, id_range(queue_id)[1], limit + 1))
    seen = tuple(
        PeekedMessage(
            ids.text(row_id if origin is None else origin),
            b"",
            salvaged_attributes(attributes),
            text_of(group),
            receives,
            moment(sent_us),
            row_id,
            _state(visible_us, held, now),
        )
        for row_id, sent_us, origin, group, attributes, receives, visible_us, held in found[:limit]
    )
    return Looked(seen, str(found[limit - 1][0]) if len(found) > limit else None)


def held_below(
    connection: apsw.Connection, ids: MessageIds, queue_id: int, *, below: int, limit: int, now: int
) -> list[PeekedMessage]:
    """The first messages with sequences below the given one, as they are stored; `now` is the monotonic clock's."""
    found = every(connection, PEEK, (id_range(queue_id)[0], below, 0, limit))
    return [peeked(ids, Row(*columns), visible_us, held, now) for *columns, visible_us, held in found]


def whereabouts(connection: apsw.Connection, ids: MessageIds, wanted: Collection[str]) -> dict[str, str]:
    """The queue that each of these messages is in, under whichever id of its own."""
    found = {message_id: one(connection, _WHEREABOUTS, (ids.row_id(message_id) or 0,)) for message_id in wanted}
    return {message_id: str(text_of(row[0])) for message_id, row in found.items() if row is not None}


def peeked(ids: MessageIds, row: Row, visible_us: int, held: int, now: int) -> PeekedMessage:
    """A row as `peek` shows it; one that is not as it was sent says so in an attribute."""
    attributes = salvaged_attributes(row.attributes)
    if is_damaged(row):
        attributes.setdefault("Damaged", DAMAGED)
    return PeekedMessage(
        ids.text(row.first_id),
        row.body,
        attributes,
        text_of(row.group_name),
        row.receives,
        moment(row.sent_us),
        row.id,
        _state(visible_us, held, now),
    )


def _state(visible_us: int, held: int, now: int) -> MessageState:
    return "visible" if visible_us <= now else "in_flight" if held else "delayed"


def stats(connection: apsw.Connection, queue_id: int, spec: QueueSpec, *, monotonic_us: int, now_us: int) -> QueueStats:
    """Count the queue. Neither backlog nor age makes it slower; leases and delays are counted one by one."""
    tally = one(connection, _TALLY, (queue_id,))
    if tally is None:
        raise QueueNotFound(f"queue {spec.name!r} was deleted")
    size, expired = tally
    low, high = id_range(queue_id)
    waiting = dict(every(connection, _WAITING, (queue_id, monotonic_us)))
    in_flight, delayed = waiting.get(1, 0), waiting.get(0, 0)
    if spec.fifo and spec.delay:
        delayed += one(connection, _FIFO_DELAYED, (low, high, monotonic_us))[0]
    oldest = oldest_us(connection, queue_id=queue_id)
    age = None if oldest is None else max(0.0, (now_us - oldest) / 1_000_000)
    return QueueStats(size - in_flight - delayed, in_flight, delayed, age, expired)
