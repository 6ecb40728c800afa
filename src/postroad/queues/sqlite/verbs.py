"""What changes the messages of a queue in one transaction: send, ack, extend, release, reject and expiry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from postroad import failpoints
from postroad.engine import Engine, Transaction, moment, one, run_many, text_of
from postroad.errors import NotSupported, StaleReceipt
from postroad.queues.markers import mark_dead
from postroad.queues.match import EVENT_ID_WITHIN, event_id
from postroad.queues.port import AckResult, Delivery
from postroad.queues.rules import DEDUP_SECONDS, MAX_VISIBILITY, check_deliveries, dedup_id
from postroad.queues.sqlite.state import (
    ENTRY,
    LEASED_ROWS,
    Content,
    MessageIds,
    QueueState,
    Row,
    States,
    channel,
    checksum,
    is_damaged,
    read_receipt,
    regroup,
    salvaged_attributes,
    write_attributes,
)

_DELAY: Final = """
INSERT INTO lease (id, queue, visible_us, held, receives, due_wall_us, sent_us) VALUES (?, ?, ?, 0, 0, ?, ?)
"""
_GROUP: Final = "SELECT id FROM grp WHERE queue = ? AND name = ?"
_ADD_GROUP: Final = "INSERT INTO grp (queue, name, visible_us) VALUES (?, ?, ?) RETURNING id"
_KNOWN: Final = "SELECT message, until_us FROM dedup WHERE scope = ? AND grp = ? AND id = ?"
_REMEMBER: Final = """
INSERT OR REPLACE INTO dedup (scope, grp, id, message, until_us, until_wall_us) VALUES (?, ?, ?, ?, ?, ?)
"""
_DEDUP_US: Final = int(DEDUP_SECONDS * 1_000_000)
_QUEUE_ID: Final = "SELECT id FROM queue WHERE name = ?"
# Neither a receipt nor a reboot brings it back: its time never comes, on either clock.
_SET_ASIDE: Final = """
INSERT INTO lease (id, queue, visible_us, held, receives, first_us, sent_us, origin, due_wall_us, error)
VALUES (?, ?, 1 << 60, 1, ?, ?, ?, ?, 1 << 60, ?)
ON CONFLICT (id) DO UPDATE SET visible_us = 1 << 60, held = 1, grp = NULL, due_wall_us = 1 << 60, error = excluded.error
"""
_LEAVE_GROUP: Final = "UPDATE message SET grp = NULL WHERE id = ?"
_DELETE: Final = "DELETE FROM message WHERE id = ?"
_DELETE_LEASE: Final = "DELETE FROM lease WHERE id = ?"
_DELETE_ALL: Final = "DELETE FROM message WHERE id IN (VALUES (?)) RETURNING grp"
_DELETE_LEASES: Final = "DELETE FROM lease WHERE id IN (VALUES (?))"
_ACK: Final = """
DELETE FROM lease WHERE id IN (VALUES (?)) AND receives + undone = ? AND held = 1 AND visible_us > ? AND +queue = ?
RETURNING id, sent_us, first_us, origin, grp, receives
"""
_CONTENTS: Final = f"""
SELECT id, CAST(attributes AS BLOB), substr(body, 1, {EVENT_ID_WITHIN}) FROM message
WHERE id IN (VALUES (?)) AND attributes IS NOT NULL
"""  # noqa: S608 - a constant
_DELETE_ACKED: Final = "DELETE FROM message WHERE id IN (VALUES (?))"
_EXTEND: Final = """
UPDATE lease SET visible_us = min(?5, leased_us + ?6)
WHERE id = ?1 AND receives + undone = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4 RETURNING grp
"""
_RELEASE: Final = """
UPDATE lease SET visible_us = ?5, held = 0, error = coalesce(?6, error), due_wall_us = ?7
WHERE id = ?1 AND receives + undone = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4
RETURNING grp, coalesce(origin, id), receives, sent_us, first_us
"""
_UNDO: Final = """
UPDATE lease SET visible_us = ?5, held = 0, receives = receives - 1, undone = undone + 1, due_wall_us = ?6
WHERE id = ?1 AND receives + undone = ?2 AND held = 1 AND visible_us > ?3 AND queue = ?4 RETURNING grp
"""
_HELD: Final = (
    f"{LEASED_ROWS} WHERE lease.id = ? AND receives + undone = ? AND held = 1 AND visible_us > ? AND queue = ?"
)
_MAX_US: Final = int(MAX_VISIBILITY * 1_000_000)
_OK: Final = AckResult(True)

Deliveries = Sequence[Delivery]
Key = tuple[int, int, int, int]
"""What finds a valid lease: row, number of the receive, the time it must reach beyond, queue."""


class Verbs:
    """Sends, settles, expires and dead-letters the messages of the embedded queues."""

    def __init__(self, engine: Engine, ids: MessageIds, states: States) -> None:
        self._engine = engine
        self._ids = ids
        self._states = states

    def send(self, tx: Transaction, state: QueueState, contents: Sequence[Content]) -> Sequence[int]:
        """Store the messages at the end of the queue; return the ids of their rows."""
        now_us = state.last_us = max(state.last_us, self._engine.now_us())
        if state.spec.fifo:
            return [self._send_ordered(tx, state, content) for content in contents]
        any_delayed, delay, unwritten = False, state.spec.delay, state.unwritten
        row_ids = range(state.next, state.next + len(contents))
        for row_id, (message, body, attributes, proof) in zip(row_ids, contents, strict=True):
            unwritten.append((row_id, now_us, None, None, None, message.group, body, attributes, proof))
            if (message.delay or delay) and (delay_us := int((message.delay or delay) * 1_000_000)):
                visible_us = self._engine.monotonic_us() + delay_us
                tx.connection.execute(_DELAY, (row_id, state.id, visible_us, now_us + delay_us, now_us))
                any_delayed = True
        state.next = row_ids.stop
        if any_delayed:
            state.returns_us = 0
            tx.touch(channel(state.id))
            # A delayed message is given out by its lease, which is joined with its row.
            state.write(tx)
        state.size += len(contents)
        state.sent += len(contents)
        return row_ids

    def _send_ordered(self, tx: Transaction, state: QueueState, content: Content) -> int:
        message, body, attributes, _ = content
        group = message.group or ""
        scope = group if state.spec.dedup_scope == "group" else ""
        first = self.first_under(tx, state.id, scope, dedup_id(message, body), state.next)
        if first is not None:
            return first
        delay_us = int(state.spec.delay * 1_000_000)
        due_us = self._engine.monotonic_us() + delay_us if delay_us else None
        state.sent += 1
        return self.append(tx, state, (state.last_us, group, body, attributes), due_us=due_us)

    def append(
        self,
        tx: Transaction,
        state: QueueState,
        content: tuple[int, str | None, bytes, str | None],
        *,
        due_us: int | None = None,
        origin: int | None = None,
        damaged: bool = False,
    ) -> int:
        """Store one message, given its time, group, body and attributes, at the end of the queue.

        With `damaged` its checksum stays wrong.
        """
        sent_us, group_name, body, attributes = content
        grp = None
        if state.spec.fifo and group_name is not None:
            found = one(tx.connection, _GROUP, (state.id, group_name))
            if found is None:
                free_us = due_us or self._engine.monotonic_us()
                found = one(tx.connection, _ADD_GROUP, (state.id, group_name, free_us))
            grp = int(found[0])
        row_id = state.next
        proof = checksum(body, attributes, group_name) ^ damaged
        state.unwritten.append((row_id, sent_us, grp, due_us, origin, group_name, body, attributes, proof))
        state.next = row_id + 1
        state.size += 1
        return row_id

    def first_under(self, tx: Transaction, scope: int, group: str, unique: str, row_id: int) -> int | None:
        """Return the first message sent under this id in the last five minutes; None if `row_id` is now the first."""
        now = self._engine.monotonic_us()
        found = one(tx.connection, _KNOWN, (scope, group, unique))
        if found is not None and found[1] > now:
            return int(found[0])
        until = (now + _DEDUP_US, self._engine.now_us() + _DEDUP_US)
        tx.connection.execute(_REMEMBER, (scope, group, unique, row_id, *until))
        return None

    def dead_letters(self, tx: Transaction, state: QueueState) -> int | None:
        """Return the id of the dead-letter queue; None if there is none."""
        name = state.spec.dead_letter
        found = None if name is None else one(tx.connection, _QUEUE_ID, (name,))
        return None if found is None else int(found[0])

    def dead_letter(
        self, tx: Transaction, state: QueueState, dead_letters: int, row: Row, *, now_us: int, reason: str | None = None
    ) -> None:
        """Move one message to the dead letters in this transaction."""
        tx.must_be_durable()
        error = text_of(row.error)
        target = self._states.for_sending(tx, dead_letters)
        target.last_us = max(target.last_us, now_us)
        attributes = mark_dead(
            salvaged_attributes(row.attributes),
            source=state.name,
            receives=row.receives,
            error=error,
            at=moment(now_us),
            reason=reason,
        )
        # As on SQS, the age of a standard dead letter counts from its first send, that of a FIFO one starts again.
        sent_us = target.last_us if target.spec.fifo else row.sent_us
        content = (sent_us, text_of(row.group_name), row.body, write_attributes(attributes))
        self.append(tx, target, content, origin=row.first_id, damaged=is_damaged(row))
        self._remove(tx, state, row, "dead", now_us, error or reason)
        state.dead += 1
        tx.touch(channel(dead_letters))
        failpoints.hit("queue.dead_letter.before_commit")

    def set_aside(self, tx: Transaction, state: QueueState, row: Row, *, error: str, now_us: int) -> None:
        """Hide a message from all receivers until its retention ends or the queue is purged."""
        times = (row.receives, row.first_us, row.sent_us, row.origin)
        tx.connection.execute(_SET_ASIDE, (row.id, state.id, *times, error))
        tx.connection.execute(_LEAVE_GROUP, (row.id,))
        self._states.add_trail(tx, state.id, "failed", entry(row), now_us, error)

    def expire(self, tx: Transaction, state: QueueState, row: Row, *, now_us: int) -> None:
        """Remove a message that is older than the queue's retention."""
        self._remove(tx, state, row, "expired", now_us)
        state.expired += 1

    def remove_all(self, tx: Transaction, state: QueueState, row_ids: Sequence[int], monotonic_us: int) -> int:
        """Remove these messages and their leases; return how many were there."""
        rows = [(row_id,) for row_id in row_ids]
        run_many(tx.cursor, _DELETE_LEASES, rows)
        groups = [group for (group,) in run_many(tx.cursor, _DELETE_ALL, rows)]
        state.size -= len(groups)
        regroup(tx, state.id, set(groups), monotonic_us)
        return len(groups)

    def _remove(
        self, tx: Transaction, state: QueueState, row: Row, kind: str, now_us: int, detail: str | None = None
    ) -> None:
        tx.connection.execute(_DELETE_LEASE, (row.id,))
        tx.connection.execute(_DELETE, (row.id,))
        state.size -= 1
        event = event_id(salvaged_attributes(row.attributes), row.body) if row.attributes else None
        named = None if event is None else f"0:{event}"
        self._states.add_trail(tx, state.id, kind, entry(row), now_us, detail, named)

    def ack(self, tx: Transaction, state: QueueState, deliveries: Deliveries) -> list[AckResult]:
        """Remove the messages whose receipts are valid. A standard queue accepts a late ack of the last receive."""
        monotonic_us = self._engine.monotonic_us()
        receipts = _receipts(deliveries)
        beyond = monotonic_us if state.spec.fifo else -1
        events = self._events(tx, deliveries, receipts)
        groups: set[int | None] = set()
        gone: set[tuple[int, int]] = set()
        rows: list[tuple[int]] = []
        for number in {number for _, number in receipts}:
            ids = [(row_id,) for row_id, each in receipts if each == number]
            for row_id, sent_us, first_us, origin, group, receives in run_many(
                tx.cursor, _ACK, ids, (number, beyond, state.id)
            ):
                if row_id in events:
                    state.events.append(f"{len(state.entries)}:{events[row_id]}")
                state.entries.append(ENTRY.pack(origin or row_id, min(receives, 65_535), sent_us, first_us or 0))
                groups.add(group)
                gone.add((row_id, number))
                rows.append((row_id,))
        run_many(tx.cursor, _DELETE_ACKED, rows)
        state.acked += len(rows)
        state.size -= len(rows)
        state.last_us = max(state.last_us, self._engine.now_us())
        if state.spec.fifo:
            regroup(tx, state.id, groups, monotonic_us)
        failpoints.hit("queue.ack.before_commit")
        if len(gone) == len(receipts):
            return [_OK] * len(receipts)
        results = []
        for delivery, receipt in zip(deliveries, receipts, strict=True):
            results.append(_OK if receipt in gone else _stale(delivery))
            # The same receipt a second time is stale.
            gone.discard(receipt)
        return results

    def _events(self, tx: Transaction, deliveries: Deliveries, receipts: Sequence[tuple[int, int]]) -> dict[int, str]:
        """Return, by row, the events that the messages carry. Who acks over HTTP gives the receipt alone."""
        found: dict[int, str] = {}
        bare: list[tuple[int]] = []
        for each, (row_id, _) in zip(deliveries, receipts, strict=True):
            if each.attributes and (event := event_id(each.attributes, each.body)) is not None:
                found[row_id] = event
            elif not each.message_id:
                bare.append((row_id,))
        for row_id, text, body in run_many(tx.cursor, _CONTENTS, bare) if bare else ():
            if (event := event_id(salvaged_attributes(text), body)) is not None:
                found[row_id] = event
        return found

    def extend(self, tx: Transaction, state: QueueState, deliveries: Deliveries, until_us: int) -> list[AckResult]:
        """Move the end of the leases, to at most twelve hours after the receive."""
        end = (until_us, _MAX_US)
        results, _ = self._change(tx, state, deliveries, lambda key: one(tx.connection, _EXTEND, (*key, *end)))
        return results

    def undo(self, tx: Transaction, state: QueueState, deliveries: Deliveries, after_us: int) -> list[AckResult]:
        """End the leases without counting the receives."""
        due = (self._engine.monotonic_us() + after_us, self._engine.now_us() + after_us if after_us else None)
        results, changed = self._change(tx, state, deliveries, lambda key: one(tx.connection, _UNDO, (*key, *due)))
        state.received -= len(changed)
        tx.touch(channel(state.id))
        return results

    def release(
        self,
        tx: Transaction,
        state: QueueState,
        deliveries: Deliveries,
        after_us: int,
        error: str | None,
        traceback: str | None,
    ) -> list[AckResult]:
        """End the leases without settling the messages."""
        now_us = self._engine.now_us()
        due = (self._engine.monotonic_us() + after_us, error, now_us + after_us if after_us else None)
        results, changed = self._change(tx, state, deliveries, lambda key: one(tx.connection, _RELEASE, (*key, *due)))
        state.retried += len(changed)
        for _, first_id, receives, sent_us, first_us in changed:
            packed = ENTRY.pack(first_id, min(receives, 65_535), sent_us, first_us or 0)
            self._states.add_trail(tx, state.id, "released" if error is None else "failed", packed, now_us, error)
            self._states.add_traceback(tx, first_id, traceback)
        tx.touch(channel(state.id))
        return results

    def reject(
        self,
        tx: Transaction,
        state: QueueState,
        deliveries: Deliveries,
        reason: str,
        error: str | None,
        traceback: str | None,
    ) -> list[AckResult]:
        """Move the messages to the dead letters now."""
        dead_letters = self.dead_letters(tx, state)
        if dead_letters is None:
            raise NotSupported(f"queue {state.name!r} has no dead-letter queue to reject to")
        now_us = self._engine.now_us()

        def move(key: Key) -> tuple[int | None] | None:
            found = one(tx.connection, _HELD, key)
            if found is None:
                return None
            row = Row(*found) if error is None else Row(*found)._replace(error=error)
            self.dead_letter(tx, state, dead_letters, row, now_us=now_us, reason=reason)
            self._states.add_traceback(tx, row.first_id, traceback)
            return (row.grp,)

        return self._change(tx, state, deliveries, move)[0]

    def _change(
        self, tx: Transaction, state: QueueState, deliveries: Deliveries, change: Callable[[Key], Any]
    ) -> tuple[list[AckResult], list[Any]]:
        """Call `change` for each delivery. It returns a row that begins with the group, or None for a stale receipt."""
        monotonic_us = self._engine.monotonic_us()
        results, changed = [], []
        for delivery, receipt in zip(deliveries, _receipts(deliveries), strict=True):
            row = change((*receipt, monotonic_us, state.id))
            if row is None:
                results.append(_stale(delivery))
            else:
                changed.append(row)
                results.append(_OK)
                state.returns_us = 0
        regroup(tx, state.id, {row[0] for row in changed}, monotonic_us)
        return results, changed


def entry(row: Row) -> bytes:
    """Return the message as the trail stores it."""
    return ENTRY.pack(row.first_id, min(row.receives, 65_535), row.sent_us, row.first_us or 0)


def _receipts(deliveries: Deliveries) -> list[tuple[int, int]]:
    """Read all receipts before anything is changed; check the deliveries only if that fails."""
    if type(deliveries) is not list:
        check_deliveries(deliveries)
    try:
        return [read_receipt(delivery.receipt) for delivery in deliveries]
    except (AttributeError, TypeError):
        check_deliveries(deliveries)
        raise


def _stale(delivery: Delivery) -> AckResult:
    # Over HTTP only the receipt is known.
    message = f"message {delivery.message_id}: " if delivery.message_id else ""
    return AckResult(False, StaleReceipt(f"{message}the receipt is no longer valid"))
