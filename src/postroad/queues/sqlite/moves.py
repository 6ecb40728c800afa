"""Moving messages to other queues, each step one transaction: a message is always in exactly one of the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postroad.engine import Engine, Transaction, every, one, run_many, text_of
from postroad.queues.moves import Decide, Move, MoveStep
from postroad.queues.spec import queue_missing
from postroad.queues.sqlite.claims import id_range
from postroad.queues.sqlite.looking import PEEK, PEEK_THESE, find_position, peeked
from postroad.queues.sqlite.rows import MessageIds, Row, channel, is_damaged, regroup, write_attributes
from postroad.queues.sqlite.sends import Sender
from postroad.queues.sqlite.settlement import Undertaker
from postroad.queues.sqlite.state import QueueState, States

_QUEUE_ID: Final = "SELECT id FROM queue WHERE name = ?"
_PURGE_LEASES: Final = """
DELETE FROM lease WHERE id IN (SELECT id FROM message WHERE id > ? AND id < ? ORDER BY id LIMIT ?)
"""
_PURGE: Final = """
DELETE FROM message WHERE id IN (SELECT id FROM message WHERE id > ? AND id < ? ORDER BY id LIMIT ?) RETURNING grp
"""


class Mover:
    """Redrives and purges the embedded queues."""

    def __init__(self, engine: Engine, ids: MessageIds, states: States, sender: Sender, undertaker: Undertaker) -> None:
        self._engine = engine
        self._ids = ids
        self._states = states
        self._sender = sender
        self._undertaker = undertaker

    def move(
        self,
        tx: Transaction,
        state: QueueState,
        decide: Decide,
        cursor: str | None,
        limit: int,
        only: Sequence[int] | None,
    ) -> MoveStep:
        """Look at the next messages in sequence order, or at those given, and move those that `decide` sends on."""
        now = self._engine.monotonic_us()
        low, high = id_range(state.id)
        if only is None:
            position = find_position(tx.connection, self._ids, state.id, cursor)
            found = every(tx.connection, PEEK, (position, high, 0, limit + 1))
        else:
            limit = len(only)
            found = run_many(tx.connection, PEEK_THESE, [(row_id,) for row_id in only if low < row_id < high])
        going: list[tuple[Row, Move]] = []
        moved: list[tuple[str, str]] = []
        in_flight = 0
        for *columns, visible_us, held in found[:limit]:
            row = Row(*columns)
            if (visible_us > now and held) or is_damaged(row):
                in_flight += 1
                continue
            message = peeked(self._ids, row, visible_us, held, now)
            if (move := decide(message)) is not None:
                going.append((row, move))
                moved.append((message.message_id, move.to))
        self._move(tx, state, going, now)
        end = str(found[limit - 1][0]) if len(found) > limit else None
        return MoveStep(cursor=end, looked_at=min(len(found), limit), moved=tuple(moved), in_flight=in_flight)

    def _move(self, tx: Transaction, state: QueueState, going: Sequence[tuple[Row, Move]], now: int) -> None:
        targets = {name: self._target(tx, name) for name in {move.to for _, move in going}}
        for row, move in going:
            target = targets[move.to]
            content = (target.last_us, text_of(row.group_name), row.body, write_attributes(move.attributes))
            self._sender.append(tx, target, content, origin=row.first_id)
        self._remove(tx, state, [row.id for row, _ in going], now)
        state.redriven += len(going)

    def _target(self, tx: Transaction, name: str) -> QueueState:
        found = one(tx.connection, _QUEUE_ID, (name,))
        if found is None:
            raise queue_missing(name)
        target = self._states.for_sending(tx, found[0])
        target.last_us = max(target.last_us, self._engine.now_us())
        tx.touch(channel(target.id))
        return target

    def purge_step(self, tx: Transaction, state: QueueState, below: int, limit: int) -> int:
        """Remove up to `limit` messages with ids below the given one; how many."""
        chosen = (id_range(state.id)[0], below, limit)
        tx.connection.execute(_PURGE_LEASES, chosen)
        removed = every(tx.connection, _PURGE, chosen)
        for group in {group for (group,) in removed} - {None}:
            regroup(tx, state, group, self._engine.monotonic_us())
        state.size -= len(removed)
        return len(removed)

    def remove(self, tx: Transaction, state: QueueState, row_ids: Sequence[int]) -> int:
        """Remove these messages and no other; how many were still there."""
        return self._remove(tx, state, row_ids, self._engine.monotonic_us())

    def _remove(self, tx: Transaction, state: QueueState, row_ids: Sequence[int], now: int) -> int:
        groups = self._undertaker.remove_all(tx, state, row_ids)
        for group in {group for group in groups if group is not None}:
            regroup(tx, state, group, now)
        return len(groups)
