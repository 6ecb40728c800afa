"""Removing what has outlived its time: messages past their retention, queues whose owner is gone."""

from __future__ import annotations

from typing import Any, Final

from postroad.connections.engine import Engine
from postroad.connections.fetching import every, one
from postroad.connections.transaction import Transaction
from postroad.queues.sqlite.burying import Undertaker
from postroad.queues.sqlite.claiming import id_range
from postroad.queues.sqlite.rows import COLUMNS, ERROR, Row, channel, regroup
from postroad.queues.sqlite.state import QueueState, States

STEP: Final = 500
_FIRST: Final = f"""
SELECT {COLUMNS}, coalesce(lease.receives, 0), lease.first_us, {ERROR}
FROM message AS m LEFT JOIN lease ON lease.id = m.id WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?
"""  # noqa: S608 - COLUMNS is a constant
_MOVED: Final = f"""
SELECT {COLUMNS}, coalesce(lease.receives, 0), lease.first_us, {ERROR}
FROM message AS m LEFT JOIN lease ON lease.id = m.id
WHERE m.id >> 40 = ? AND m.origin IS NOT NULL AND m.sent_us <= ? ORDER BY m.sent_us LIMIT ?
"""  # noqa: S608 - COLUMNS is a constant
_ABANDONED: Final = "SELECT queue, size FROM tally WHERE lives_us IS NOT NULL AND seen_us <= ? - lives_us"
_COUNT: Final = "UPDATE abandoned SET queues = queues + 1, messages = messages + ?"
_REMOVE: Final = (
    "DELETE FROM lease WHERE queue = ?1",
    "DELETE FROM message WHERE id > ?1 << 40 AND id < (?1 + 1) << 40",
    "DELETE FROM grp WHERE queue = ?1",
    "DELETE FROM dedup WHERE scope = ?1",
    "DELETE FROM tally WHERE queue = ?1",
    "DELETE FROM queue WHERE id = ?1",
)


_OLD_DEDUP: Final = "SELECT 1 FROM (SELECT until_us FROM dedup ORDER BY n LIMIT 1) WHERE until_us <= ?"
_FORGET_DEDUP: Final = f"""
DELETE FROM dedup WHERE n IN (SELECT n FROM dedup ORDER BY n LIMIT {STEP}) AND until_us <= ? RETURNING n
"""  # noqa: S608 - STEP is a constant


class Sweeper:
    """Takes away what nobody will come for."""

    def __init__(self, engine: Engine, states: States, undertaker: Undertaker) -> None:
        self._engine = engine
        self._states = states
        self._undertaker = undertaker

    def expire_oldest(self, tx: Transaction, state: QueueState) -> int:
        """Remove up to a step of expired messages, from the old end and among those moved here; how many."""
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        oldest_us = now_us - int(state.spec.retention * 1_000_000)
        rows = {
            **{row[0]: row for row in every(tx.connection, _FIRST, (*id_range(state.id), STEP)) if row[1] <= oldest_us},
            **{row[0]: row for row in every(tx.connection, _MOVED, (state.id, oldest_us, STEP))},
        }
        for columns in rows.values():
            self._undertaker.expire(tx, state, Row(*columns), now_us=now_us)
        for group in {columns[2] for columns in rows.values()} - {None}:
            regroup(tx, state, group, monotonic_us)
        return len(rows)

    def sees_abandoned(self, connection: Any) -> bool:
        """Whether there are queues that `remove_abandoned` would remove."""
        return one(connection, _ABANDONED, (self._engine.monotonic_us(),)) is not None

    def sees_old_dedup_ids(self, connection: Any) -> bool:
        """Whether there are deduplication ids whose five minutes are over."""
        return one(connection, _OLD_DEDUP, (self._engine.monotonic_us(),)) is not None

    def forget_dedup_ids(self, tx: Transaction) -> bool:
        """Forget up to a step of deduplication ids whose five minutes are over; whether there may be more."""
        return len(every(tx.connection, _FORGET_DEDUP, (self._engine.monotonic_us(),))) == STEP

    def remove_abandoned(self, tx: Transaction) -> None:
        """Remove queues whose owner renewed nothing for as long as they live."""
        # A receive of this transaction may have renewed one in memory only.
        self._states.store(tx)
        for queue_id, size in every(tx.connection, _ABANDONED, (self._engine.monotonic_us(),)):
            self.remove_queue(tx, queue_id)
            tx.connection.execute(_COUNT, (size,))

    def remove_queue(self, tx: Transaction, queue_id: int) -> None:
        """Remove a queue with all it holds."""
        self._states.forget(queue_id)
        tx.touch(channel(queue_id))
        for statement in _REMOVE:
            tx.connection.execute(statement, (queue_id,))
