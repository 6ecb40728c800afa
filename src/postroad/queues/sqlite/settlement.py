"""What a receiver does with its lease: ack, extend, release, reject; and the way to the dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from postroad import failpoints
from postroad.engine import Engine, Transaction, one, run_many, text_of
from postroad.errors import NotSupported, StaleReceipt
from postroad.queues.markers import mark_dead
from postroad.queues.port import AckResult, Delivery
from postroad.queues.rules import check_deliveries
from postroad.queues.spec import MAX_VISIBILITY
from postroad.queues.sqlite.rows import (
    COLUMNS,
    ERROR,
    Row,
    channel,
    is_damaged,
    moment,
    read_receipt,
    regroup,
    salvaged_attributes,
    write_attributes,
)
from postroad.queues.sqlite.sends import Sender
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


_ACK: Final = """
DELETE FROM lease WHERE id IN (VALUES (?)) AND receives = ? AND held = 1 AND visible_us > ? AND +queue = ?
RETURNING id, receives, sent_us, first_us, origin, grp
"""
_DELETE_ACKED: Final = "DELETE FROM message WHERE id IN (VALUES (?))"
_EXTEND: Final = """
UPDATE lease SET visible_us = min(?5, leased_us + ?6)
WHERE id = ?1 AND receives = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4 RETURNING grp
"""
_RELEASE: Final = """
UPDATE lease SET visible_us = ?5, held = 0, error = coalesce(?6, error), due_wall_us = ?7
WHERE id = ?1 AND receives = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4
RETURNING id, receives, sent_us, first_us, origin, grp
"""
_UNDO: Final = """
UPDATE lease SET visible_us = ?5, held = 0, receives = receives - 1, due_wall_us = ?6
WHERE id = ?1 AND receives = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4 RETURNING grp
"""
_HELD: Final = f"""
SELECT {COLUMNS}, lease.receives, lease.first_us, {ERROR} FROM lease JOIN message AS m ON m.id = lease.id
WHERE lease.id = ?1 AND receives = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4
"""  # noqa: S608 - COLUMNS is a constant
_MAX_US: Final = int(MAX_VISIBILITY * 1_000_000)
_OK: Final = AckResult(True)

Key = tuple[int, int, int, int]
"""What finds a valid lease: row, receive count, the time it must reach beyond, queue."""


class Settler:
    """Ends and prolongs leases."""

    def __init__(self, engine: Engine, states: States, undertaker: Undertaker) -> None:
        self._engine = engine
        self._states = states
        self._undertaker = undertaker

    def ack(self, tx: Transaction, state: QueueState, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Remove the messages whose receipts are valid. A standard queue takes an ack that is late but still first."""
        monotonic_us = self._engine.monotonic_us()
        receipts = _receipts(deliveries)
        beyond = monotonic_us if state.spec.fifo else -1
        groups: set[int | None] = set()
        gone: dict[tuple[int, int], None] = {}
        for receives in {receives for _, receives in receipts}:
            ids = [(row_id,) for row_id, count in receipts if count == receives]
            for row_id, _, sent_us, first_us, origin, group in run_many(
                tx.connection, _ACK, ids, (receives, beyond, state.id)
            ):
                state.remember(origin or row_id, receives, sent_us, first_us)
                groups.add(group)
                gone[row_id, receives] = None
        run_many(tx.connection, _DELETE_ACKED, [(row_id,) for row_id, _ in gone])
        state.acked += len(gone)
        state.size -= len(gone)
        results = [
            _OK if receipt in gone and gone.pop(receipt) is None else _stale(delivery)
            for delivery, receipt in zip(deliveries, receipts, strict=True)
        ]
        state.last_us = max(state.last_us, self._engine.now_us())
        self._regroup(tx, state, groups, monotonic_us)
        failpoints.hit("queue.ack.before_commit")
        return results

    def extend(
        self, tx: Transaction, state: QueueState, deliveries: Sequence[Delivery], until_us: int
    ) -> list[AckResult]:
        """Move the end of the leases, at most twelve hours from the receive."""
        return self._change(tx, state, deliveries, lambda key: one(tx.connection, _EXTEND, (*key, until_us, _MAX_US)))

    def undo(
        self, tx: Transaction, state: QueueState, deliveries: Sequence[Delivery], after_us: int
    ) -> list[AckResult]:
        """Take deliveries back; they cost no receive."""
        due_us = self._engine.monotonic_us() + after_us
        due_wall_us = self._engine.now_us() + after_us if after_us else None
        results = self._change(
            tx, state, deliveries, lambda key: one(tx.connection, _UNDO, (*key, due_us, due_wall_us))
        )
        state.received -= sum(result.ok for result in results)
        tx.touch(channel(state.id))
        return results

    def release(
        self, tx: Transaction, state: QueueState, deliveries: Sequence[Delivery], after_us: int, error: str | None
    ) -> list[AckResult]:
        """End the leases without settling the messages."""
        monotonic_us = self._engine.monotonic_us()
        due_wall_us = self._engine.now_us() + after_us if after_us else None
        results, groups = [], set()
        for delivery, key in self._keys(state, deliveries, monotonic_us, late=False):
            row = one(tx.connection, _RELEASE, (*key, monotonic_us + after_us, error, due_wall_us))
            if row is None:
                results.append(_stale(delivery))
                continue
            row_id, receives, sent_us, first_us, origin, group = row
            groups.add(group)
            state.retried += 1
            state.returns_us = 0
            if error is not None:
                entry = ENTRY.pack(origin or row_id, min(receives, 65_535), sent_us, first_us or 0)
                self._states.add_trail(tx, state.id, "failed", [entry], self._engine.now_us(), error)
            results.append(_OK)
        self._regroup(tx, state, groups, monotonic_us)
        tx.touch(channel(state.id))
        return results

    def reject(
        self, tx: Transaction, state: QueueState, deliveries: Sequence[Delivery], reason: str, error: str | None
    ) -> list[AckResult]:
        """Move the messages to the dead letters now."""
        dead_letters = self._undertaker.dead_letters(tx, state)
        if dead_letters is None:
            raise NotSupported(f"queue {state.name!r} has no dead-letter queue to reject to")
        monotonic_us, now_us = self._engine.monotonic_us(), self._engine.now_us()
        results, groups = [], set()
        for delivery, key in self._keys(state, deliveries, monotonic_us, late=False):
            found = one(tx.connection, _HELD, key)
            if found is None:
                results.append(_stale(delivery))
                continue
            row = Row(*found)
            row = row if error is None else row._replace(error=error)
            groups.add(row.grp)
            self._undertaker.bury(tx, state, dead_letters, row, now_us=now_us, reason=reason)
            results.append(_OK)
        self._regroup(tx, state, groups, monotonic_us)
        return results

    def _change(
        self,
        tx: Transaction,
        state: QueueState,
        deliveries: Sequence[Delivery],
        change: Callable[[Key], Any],
    ) -> list[AckResult]:
        monotonic_us = self._engine.monotonic_us()
        results, groups = [], set()
        for delivery, key in self._keys(state, deliveries, monotonic_us, late=False):
            row = change(key)
            if row is None:
                results.append(_stale(delivery))
                continue
            groups.add(row[0])
            state.returns_us = 0
            results.append(_OK)
        self._regroup(tx, state, groups, monotonic_us)
        return results

    def _keys(
        self, state: QueueState, deliveries: Sequence[Delivery], monotonic_us: int, *, late: bool
    ) -> Iterator[tuple[Delivery, Key]]:
        beyond = -1 if late else monotonic_us
        for delivery, (row_id, receives) in zip(deliveries, _receipts(deliveries), strict=True):
            yield delivery, (row_id, receives, beyond, state.id)

    def _regroup(self, tx: Transaction, state: QueueState, groups: set[int | None], monotonic_us: int) -> None:
        for group in groups:
            if group is not None:
                regroup(tx, state, group, monotonic_us)


def _receipts(deliveries: Sequence[Delivery]) -> list[tuple[int, int]]:
    """All receipts before anything is changed. What is no delivery is looked for when it could not be read."""
    if type(deliveries) is not list:
        check_deliveries(deliveries)
    try:
        return [read_receipt(delivery.receipt) for delivery in deliveries]
    except (AttributeError, TypeError):
        check_deliveries(deliveries)
        raise


def _stale(delivery: Delivery) -> AckResult:
    return AckResult(False, StaleReceipt(f"message {delivery.message_id}: the receipt is no longer valid"))
