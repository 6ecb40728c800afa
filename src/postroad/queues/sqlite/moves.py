"""Reading messages without leasing them, and moving and purging them in steps of one transaction each.

A message that moves is always in exactly one of the two queues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import apsw

from postroad.engine import Engine, Transaction, every, moment, one, run_many, text_of
from postroad.errors import InvalidInput
from postroad.queues.match import EVENT_ID_WITHIN, event_id
from postroad.queues.port import Decide, Looked, Move, MoveStep, PeekedMessage
from postroad.queues.rules import queue_missing
from postroad.queues.sqlite.state import (
    COLUMNS,
    DAMAGED,
    ENTRY,
    GROUP_AND_ATTRIBUTES,
    JOINED,
    MAX_ID,
    MessageIds,
    QueueState,
    Row,
    States,
    channel,
    id_range,
    is_damaged,
    message_state,
    regroup,
    salvaged_attributes,
    write_attributes,
)
from postroad.queues.sqlite.verbs import Verbs, entry

_PEEKED: Final = f"SELECT {COLUMNS}, coalesce(lease.visible_us, m.due_us, 0), coalesce(lease.held, 0) {JOINED}"
_PEEK: Final = f"{_PEEKED} WHERE m.id > ? AND m.id < ? AND m.sent_us > ? ORDER BY m.id LIMIT ?"
_PEEK_THESE: Final = f"{_PEEKED} WHERE m.id IN (VALUES (?)) ORDER BY m.id"
_WALK: Final = f"""
SELECT m.id, m.sent_us, m.origin, {GROUP_AND_ATTRIBUTES}, coalesce(lease.receives, 0),
    coalesce(lease.visible_us, m.due_us, 0), coalesce(lease.held, 0)
{JOINED} WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?
"""
_MOVED: Final = "SELECT id FROM message WHERE origin = ? AND id > ? AND id < ?"
_WHEREABOUTS: Final = """
SELECT CAST(name AS BLOB) FROM queue WHERE id = (SELECT id >> 40 FROM message WHERE origin = ?1 UNION ALL
    SELECT id >> 40 FROM message WHERE id = ?1 LIMIT 1)
"""
_QUEUE_ID: Final = "SELECT id FROM queue WHERE name = ?"
_GOING: Final = f"""
SELECT coalesce(m.origin, m.id), min(coalesce(lease.receives, 0), 65535), m.sent_us, coalesce(lease.first_us, 0),
    CAST(m.attributes AS BLOB), substr(m.body, 1, {EVENT_ID_WITHIN}) {JOINED}
"""
_GOING_BELOW: Final = f"{_GOING} WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?"
_GOING_THESE: Final = f"{_GOING} WHERE m.id IN (VALUES (?))"
_PURGE_LEASES: Final = """
DELETE FROM lease WHERE id IN (SELECT id FROM message WHERE id > ? AND id < ? ORDER BY id LIMIT ?)
"""
_PURGE: Final = """
DELETE FROM message WHERE id IN (SELECT id FROM message WHERE id > ? AND id < ? ORDER BY id LIMIT ?) RETURNING grp
"""


class Mover:
    """Reads, moves and purges the messages of the embedded queues."""

    def __init__(self, engine: Engine, ids: MessageIds, states: States, verbs: Verbs) -> None:
        self._engine = engine
        self._ids = ids
        self._states = states
        self._verbs = verbs

    def peek(
        self, connection: apsw.Connection, queue_id: int, *, after: object, limit: int, oldest_us: int
    ) -> list[PeekedMessage]:
        """Return up to `limit` messages behind the message `after` that were sent after `oldest_us`."""
        position = self._position(connection, queue_id, after)
        return self._messages(connection, position, id_range(queue_id)[1], oldest_us, limit)

    def below(self, connection: apsw.Connection, queue_id: int, *, below: int, limit: int) -> list[PeekedMessage]:
        """Return the first messages with sequences below the given one."""
        return self._messages(connection, id_range(queue_id)[0], below, 0, limit)

    def look(self, connection: apsw.Connection, queue_id: int, *, cursor: str | None, limit: int) -> Looked:
        """Return up to `limit` messages behind the cursor, without their bodies."""
        now = self._engine.monotonic_us()
        position = self._position(connection, queue_id, cursor)
        found = every(connection, _WALK, (position, id_range(queue_id)[1], limit + 1))
        seen = tuple(
            PeekedMessage(
                self._ids.text(row_id if origin is None else origin),
                b"",
                salvaged_attributes(attributes),
                text_of(group),
                receives,
                moment(sent_us),
                row_id,
                message_state(visible_us, held, now),
            )
            for row_id, sent_us, origin, group, attributes, receives, visible_us, held in found[:limit]
        )
        return Looked(seen, str(found[limit - 1][0]) if len(found) > limit else None)

    def whereabouts(self, connection: apsw.Connection, ids: Collection[str]) -> dict[str, str]:
        """Return the queue that each of these messages is in, whatever row it has there."""
        found = {each: one(connection, _WHEREABOUTS, (self._ids.row_id(each) or 0,)) for each in ids}
        return {message_id: str(text_of(row[0])) for message_id, row in found.items() if row is not None}

    def move(
        self,
        tx: Transaction,
        state: QueueState,
        decide: Decide,
        cursor: str | None,
        limit: int,
        only: Sequence[int] | None,
    ) -> MoveStep:
        """Read the next messages in sequence order, or those given, and move those that `decide` chooses."""
        now = self._engine.monotonic_us()
        low, high = id_range(state.id)
        if only is None:
            position = self._position(tx.connection, state.id, cursor)
            found = every(tx.connection, _PEEK, (position, high, 0, limit + 1))
        else:
            limit = len(only)
            found = run_many(tx.cursor, _PEEK_THESE, [(row_id,) for row_id in only if low < row_id < high])
        going: list[tuple[Row, Move]] = []
        moved: list[tuple[str, str]] = []
        in_flight = 0
        for *columns, visible_us, held in found[:limit]:
            row = Row(*columns)
            if (visible_us > now and held) or is_damaged(row):
                in_flight += 1
                continue
            message = self._message(row, visible_us, held, now)
            if (move := decide(message)) is not None:
                going.append((row, move))
                moved.append((message.message_id, move.to))
        targets = {name: self._target(tx, name) for name in {move.to for _, move in going}}
        for row, move in going:
            target = targets[move.to]
            content = (target.last_us, text_of(row.group_name), row.body, write_attributes(move.attributes))
            self._verbs.append(tx, target, content, origin=row.first_id)
        for to in targets:
            entries = b"".join(entry(row) for row, move in going if move.to == to)
            self._states.add_trail(tx, state.id, "redriven", entries, self._engine.now_us(), f"to {to}")
        self._verbs.remove_all(tx, state, [row.id for row, _ in going], now)
        state.redriven += len(going)
        end = str(found[limit - 1][0]) if len(found) > limit else None
        return MoveStep(cursor=end, looked_at=min(len(found), limit), moved=tuple(moved), in_flight=in_flight)

    def _target(self, tx: Transaction, name: str) -> QueueState:
        found = one(tx.connection, _QUEUE_ID, (name,))
        if found is None:
            raise queue_missing(name)
        target = self._states.for_sending(tx, found[0])
        target.last_us = max(target.last_us, self._engine.now_us())
        tx.touch(channel(target.id))
        return target

    def purge_step(self, tx: Transaction, state: QueueState, below: int, limit: int, noted: bool = True) -> int:
        """Remove up to `limit` messages with ids below the given one, noted in the trail or not; return how many."""
        chosen = (id_range(state.id)[0], below, limit)
        if noted:
            self._note_purged(tx, state, every(tx.connection, _GOING_BELOW, chosen))
        tx.connection.execute(_PURGE_LEASES, chosen)
        removed = every(tx.connection, _PURGE, chosen)
        regroup(tx, state.id, {group for (group,) in removed}, self._engine.monotonic_us())
        state.size -= len(removed)
        return len(removed)

    def remove(self, tx: Transaction, state: QueueState, row_ids: Sequence[int]) -> int:
        """Remove these messages and no other; return how many were still there."""
        self._note_purged(tx, state, run_many(tx.connection, _GOING_THESE, [(row_id,) for row_id in row_ids]))
        return self._verbs.remove_all(tx, state, row_ids, self._engine.monotonic_us())

    def _note_purged(self, tx: Transaction, state: QueueState, going: Sequence[Any]) -> None:
        entries = b"".join(ENTRY.pack(*numbers) for *numbers, _, _ in going)
        carried = [None if text is None else event_id(salvaged_attributes(text), body) for *_, text, body in going]
        events = " ".join(f"{place}:{event}" for place, event in enumerate(carried) if event is not None)
        if going:
            self._states.add_trail(tx, state.id, "purged", entries, self._engine.now_us(), events=events or None)

    def _position(self, connection: apsw.Connection, queue_id: int, after: object) -> int:
        """Return the row to go on behind: that of a message id, or of a sequence whose message may be gone."""
        low, high = id_range(queue_id)
        if after is None:
            return low
        if isinstance(after, str) and after.isdecimal() and len(after) <= 19:
            return max(low, min(int(after), MAX_ID))
        first_id = self._ids.row_id(after) if isinstance(after, str) else None
        if first_id is None:
            raise InvalidInput(f"after: {after!r} is not a message id of this backend", field="after")
        # A message that was redriven stands at the row it moved to last, not at the one it was sent to.
        moved = one(connection, _MOVED, (first_id, low, high))
        if moved is None and not low < first_id < high:
            raise InvalidInput(f"after: message {after} is not in this queue", field="after")
        return first_id if moved is None else int(moved[0])

    def _messages(self, connection: apsw.Connection, *bounds: int) -> list[PeekedMessage]:
        now, found = self._engine.monotonic_us(), every(connection, _PEEK, bounds)
        return [self._message(Row(*columns), visible_us, held, now) for *columns, visible_us, held in found]

    def _message(self, row: Row, visible_us: int, held: int, now: int) -> PeekedMessage:
        """Return a row as `peek` shows it; a damaged one says so in an attribute."""
        attributes = salvaged_attributes(row.attributes)
        if is_damaged(row):
            attributes.setdefault("Damaged", DAMAGED)
        return PeekedMessage(
            self._ids.text(row.first_id),
            row.body,
            attributes,
            text_of(row.group_name),
            row.receives,
            moment(row.sent_us),
            row.id,
            message_state(visible_us, held, now),
        )
