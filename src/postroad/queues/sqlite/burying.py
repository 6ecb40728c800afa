"""Taking messages out of a queue other than by ack: to the dead letters, or because their time is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postroad import failpoints
from postroad.connections.fetching import one, text_of
from postroad.connections.many import run_many
from postroad.connections.transaction import Transaction
from postroad.queues.markers import mark_dead
from postroad.queues.sqlite.rows import Row, channel, is_damaged, moment, salvaged_attributes, write_attributes
from postroad.queues.sqlite.sending import Sender
from postroad.queues.sqlite.state import ENTRY, QueueState, States

_QUEUE_ID: Final = "SELECT id FROM queue WHERE name = ?"
_DELETE: Final = "DELETE FROM message WHERE id = ?"
_DELETE_LEASE: Final = "DELETE FROM lease WHERE id = ?"
# Neither a receipt nor a reboot brings it back: its time on either clock never comes.
_SET_ASIDE: Final = """
INSERT INTO lease (id, queue, visible_us, held, receives, first_us, sent_us, origin, due_wall_us, error)
VALUES (?, ?, 1 << 60, 1, ?, ?, ?, ?, 1 << 60, ?)
ON CONFLICT (id) DO UPDATE SET visible_us = 1 << 60, held = 1, grp = NULL, due_wall_us = 1 << 60, error = excluded.error
"""
_LEAVE_GROUP: Final = "UPDATE message SET grp = NULL WHERE id = ?"
_DELETE_ALL: Final = "DELETE FROM message WHERE id IN (VALUES (?)) RETURNING grp"
_DELETE_LEASES: Final = "DELETE FROM lease WHERE id IN (VALUES (?))"


class Undertaker:
    """Moves messages to dead-letter queues and removes expired ones."""

    def __init__(self, states: States, sender: Sender) -> None:
        self._states = states
        self._sender = sender

    def dead_letters(self, tx: Transaction, state: QueueState) -> int | None:
        """The id of the dead-letter queue; None when there is none."""
        name = state.spec.dead_letter
        found = None if name is None else one(tx.connection, _QUEUE_ID, (name,))
        return None if found is None else int(found[0])

    def bury(
        self, tx: Transaction, state: QueueState, dead_letters: int, row: Row, *, now_us: int, reason: str | None = None
    ) -> None:
        """Move one message to the dead letters in this transaction."""
        tx.must_be_durable()
        error = text_of(row.error)
        grave = self._states.for_sending(tx, dead_letters)
        grave.last_us = max(grave.last_us, now_us)
        attributes = mark_dead(
            salvaged_attributes(row.attributes),
            source=state.name,
            receives=row.receives,
            error=error,
            at=moment(now_us),
            reason=reason,
        )
        # A standard dead letter goes on ageing from its first sending, a FIFO one starts anew; so does SQS.
        sent_us = grave.last_us if grave.spec.fifo else row.sent_us
        content = (sent_us, text_of(row.group_name), row.body, write_attributes(attributes))
        self._sender.append(tx, grave, content, origin=row.first_id, damaged=is_damaged(row))
        self.remove(tx, state, row.id)
        state.dead += 1
        entry = ENTRY.pack(row.first_id, min(row.receives, 65_535), row.sent_us, row.first_us or 0)
        self._states.add_trail(tx, state.id, "dead", [entry], now_us, error or reason)
        tx.touch(channel(dead_letters))
        failpoints.hit("queue.dead_letter.before_commit")

    def set_aside(self, tx: Transaction, state: QueueState, row: Row, *, error: str, now_us: int) -> None:
        """Hide a message that nobody may get from its queue's receivers, until its retention ends or it is purged."""
        times = (row.receives, row.first_us, row.sent_us, row.origin)
        tx.connection.execute(_SET_ASIDE, (row.id, state.id, *times, error))
        tx.connection.execute(_LEAVE_GROUP, (row.id,))
        entry = ENTRY.pack(row.first_id, min(row.receives, 65_535), row.sent_us, row.first_us or 0)
        self._states.add_trail(tx, state.id, "failed", [entry], now_us, error)

    def expire(self, tx: Transaction, state: QueueState, row: Row, *, now_us: int) -> None:
        """Remove a message that is older than the queue keeps it."""
        self.remove(tx, state, row.id)
        state.expired += 1
        entry = ENTRY.pack(row.first_id, min(row.receives, 65_535), row.sent_us, row.first_us or 0)
        self._states.add_trail(tx, state.id, "expired", [entry], now_us)

    def remove(self, tx: Transaction, state: QueueState, row_id: int) -> None:
        """Remove one message and its lease."""
        tx.connection.execute(_DELETE_LEASE, (row_id,))
        tx.connection.execute(_DELETE, (row_id,))
        state.size -= 1

    def remove_all(self, tx: Transaction, state: QueueState, row_ids: Sequence[int]) -> list[int | None]:
        """Remove these messages and their leases; the groups of those that were there."""
        rows = [(row_id,) for row_id in row_ids]
        run_many(tx.connection, _DELETE_LEASES, rows)
        groups = [group for (group,) in run_many(tx.connection, _DELETE_ALL, rows)]
        state.size -= len(groups)
        return groups
