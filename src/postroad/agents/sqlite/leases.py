"""Leases of agents' queues: claim, ack, extend, release, undo and reject; and how messages become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from postroad import failpoints
from postroad.agents.sqlite.message_groups import TOTAL, lock, regroup, set_head
from postroad.agents.sqlite.tables import (
    DAMAGED,
    NEVER,
    Reader,
    Receipt,
    Row,
    StoredEvent,
    channel,
    new_fence,
    next_places,
    read_receipt,
)
from postroad.engine import Engine, Transaction, every, one, text_of
from postroad.errors import QueueNotFound, StaleReceipt
from postroad.queues import MAX_VISIBILITY, AckResult, Delivery, check_deliveries, moment

_LOOK: Final = 200
_LOOKS: Final = 25
_QUEUE: Final = """
SELECT total, coalesce(head, 0) FROM agent LEFT JOIN agent_lane ON agent_lane.lane = agent.num
WHERE num = ? AND state = 'active'
"""
_FREE: Final = "SELECT grp FROM agent_group WHERE lane = ? AND visible_us <= ? ORDER BY visible_us LIMIT ?"
_GROUP: Final = "SELECT 1 FROM agent_group WHERE lane = ? AND grp = ?"
_OF_GROUP: Final = """
SELECT turn, place, producer, receives, first_us, CAST(error AS BLOB), replay, 0 FROM agent_lease
WHERE lane = ?1 AND grp = ?2
UNION ALL
SELECT turn, place, producer, 0, NULL, NULL, replay, 1 FROM agent_aside WHERE lane = ?1 AND grp = ?2
ORDER BY turn LIMIT ?3
"""
_FRESH: Final = """
SELECT held.place, held.producer, coalesce(pair.paused, 0) FROM agent_row AS held
LEFT JOIN agent_pair AS pair ON pair.producer = held.producer AND pair.subscriber = held.lane
WHERE held.lane = ? AND held.place >= ? ORDER BY held.place LIMIT ?
"""
_LEASE: Final = """
INSERT INTO agent_lease
    (lane, turn, place, producer, grp, visible_us, fence, leased_us, receives, first_us, replay, held)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
ON CONFLICT DO UPDATE SET visible_us = excluded.visible_us, held = 1, fence = excluded.fence,
    receives = excluded.receives, leased_us = excluded.leased_us, due_wall_us = NULL
"""
_ASIDE: Final = "INSERT INTO agent_aside (lane, grp, turn, place, producer, replay) VALUES (?, ?, ?, ?, ?, 0)"
_ADD_DEAD: Final = """
INSERT INTO agent_dead (lane, n, place, producer, receives, at_us, error, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_UNLEASE: Final = "DELETE FROM agent_lease WHERE lane = ? AND turn = ?"
_UNASIDE: Final = "DELETE FROM agent_aside WHERE lane = ? AND grp = ? AND turn = ?"
_COUNT_EXPIRED: Final = """
INSERT INTO agent_lane (lane, expired) VALUES (?, 1) ON CONFLICT DO UPDATE SET expired = expired + 1
"""
_VALID: Final = "lane = ?1 AND turn = ?2 AND fence = ?3 AND held = 1 AND visible_us > ?4"
_ACK: Final = f"DELETE FROM agent_lease WHERE {_VALID} RETURNING grp"  # noqa: S608 - a constant
_EXTEND: Final = f"UPDATE agent_lease SET visible_us = min(?5, leased_us + ?6) WHERE {_VALID} RETURNING grp"  # noqa: S608 - a constant
_RELEASE: Final = f"""
UPDATE agent_lease SET visible_us = ?5, held = 0, error = coalesce(?6, error), due_wall_us = ?7,
    receives = receives - ?8
WHERE {_VALID} RETURNING grp
"""  # noqa: S608 - a constant
_TAKE: Final = f"""
DELETE FROM agent_lease WHERE {_VALID}
RETURNING grp, turn, place, producer, receives, first_us, CAST(error AS BLOB), replay, 0
"""  # noqa: S608 - a constant
_MAX_US: Final = int(MAX_VISIBILITY * 1_000_000)


class _Given(NamedTuple):
    row: Row
    group: int
    event: StoredEvent


class Leases:
    """Leases the messages of agents' queues to receivers, and ends and extends the leases."""

    def __init__(self, engine: Engine, reader: Reader, max_receives: int) -> None:
        self._engine = engine
        self.reader = reader
        self._max_receives = max_receives

    def claim(self, tx: Transaction, agent: int, limit: int, visibility_us: int) -> tuple[list[Delivery], bool]:
        """Lease up to `limit` messages; return them and whether another claim may find more."""
        found = one(tx.connection, _QUEUE, (agent,))
        if found is None:
            raise QueueNotFound("the agent was deleted")
        total, head = found
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        until_us = monotonic_us + visibility_us
        taken: set[int] = set()
        given, dropped = self._returned(tx, agent, limit, now_us, monotonic_us, taken)
        locked = bool(total) and TOTAL not in taken and _exists(tx, agent, TOTAL)
        more = dropped
        if len(given) < limit and not locked:
            more = self._fresh(tx, agent, bool(total), head, limit, now_us, given, taken) or dropped
        for group in {entry.group for entry in given}:
            lock(tx, agent, group, until_us)
        return self._lease(tx, agent, given, until_us, now_us, monotonic_us), more

    def _returned(
        self, tx: Transaction, agent: int, limit: int, now_us: int, monotonic_us: int, taken: set[int]
    ) -> tuple[list[_Given], bool]:
        """Return messages of free groups behind the head; add the groups that gave all they had to `taken`."""
        given: list[_Given] = []
        dropped = False
        for (group,) in every(tx.connection, _FREE, (agent, monotonic_us, limit)):
            wanted = limit - len(given)
            if not wanted:
                break
            rows = [Row(*row) for row in every(tx.connection, _OF_GROUP, (agent, group, wanted + 1))]
            alive = list(self._alive(tx, agent, group, rows[:wanted], now_us))
            given += alive
            dropped = dropped or len(alive) < len(rows[:wanted])
            if not alive:
                regroup(tx, agent, group, monotonic_us)
            if len(rows) <= wanted:
                taken.add(group)
        return given, dropped

    def _alive(self, tx: Transaction, agent: int, group: int, rows: list[Row], now_us: int) -> Iterator[_Given]:
        for row in rows:
            event = self.reader.event(tx.connection, agent, row.place)
            if self._keeps(tx, agent, group, row, event, now_us) and event is not None:
                yield _Given(row, group, event)

    def _fresh(
        self,
        tx: Transaction,
        agent: int,
        total: bool,
        head: int,
        limit: int,
        now_us: int,
        given: list[_Given],
        taken: set[int],
    ) -> bool:
        """Go on from the head, set aside what has to wait for its group, and return whether rows are left."""
        start, more = head, True
        asides: list[tuple[int, ...]] = []
        paused_groups: set[int] = set()
        for look in range(_LOOKS):
            size = _LOOK if look else limit - len(given)
            rows: list[Any] = every(tx.connection, _FRESH, (agent, head, size))
            for place, producer, paused in rows:
                if len(given) == limit:
                    break
                head = place + 1
                group = TOTAL if total and not paused else producer
                if paused or (group not in taken and _exists(tx, agent, group)):
                    asides.append((agent, group, place, place, producer))
                    paused_groups.update([group] if paused else ())
                    continue
                taken.add(group)
                row = Row(place, place, producer, 0, None, None, 0, False)
                given += self._alive(tx, agent, group, [row], now_us)
            if len(given) == limit or len(rows) < size:
                more = len(rows) == size
                break
        tx.connection.executemany(_ASIDE, asides)
        for group in paused_groups:
            lock(tx, agent, group, NEVER)
        if head != start:
            set_head(tx, agent, head)
        return more

    def _lease(
        self, tx: Transaction, agent: int, given: list[_Given], until_us: int, now_us: int, monotonic_us: int
    ) -> list[Delivery]:
        if not given:
            return []
        fence = new_fence()
        tx.connection.executemany(
            _UNASIDE, [(agent, entry.group, entry.row.turn) for entry in given if entry.row.aside]
        )
        common = (until_us, fence, monotonic_us)
        tx.connection.executemany(
            _LEASE,
            [
                (agent, *row[:3], group, *common, row.receives + 1, row.first_us or now_us, row.replay)
                for row, group, _ in given
            ],
        )
        return [
            Delivery(
                message_id=self.reader.message_id(agent, row.place),
                body=self.reader.body(tx.connection, agent, event, replay=bool(row.replay)),
                attributes={},
                group=self.reader.group(tx.connection, agent, group),
                receipt=Receipt(agent, row.turn, fence).text,
                receive_count=row.receives + 1,
                sent_at=moment(event.arrived_us),
                first_received_at=moment(row.first_us or now_us),
                sequence=row.turn,
            )
            for row, group, event in given
        ]

    def ack(self, tx: Transaction, agent: int, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = self._change(tx, agent, deliveries, _ACK, self._engine.monotonic_us())
        failpoints.hit("queue.ack.before_commit")
        return results

    def extend(self, tx: Transaction, agent: int, deliveries: Sequence[Delivery], seconds: float) -> list[AckResult]:
        """Move the end of the leases, at most twelve hours from the receive."""
        now = self._engine.monotonic_us()
        return self._change(tx, agent, deliveries, _EXTEND, now, now + int(seconds * 1_000_000), _MAX_US)

    def release(
        self,
        tx: Transaction,
        agent: int,
        deliveries: Sequence[Delivery],
        after: float,
        error: str | None,
        uncounted: int = 0,
    ) -> list[AckResult]:
        """End the leases without settling the messages, and take back so many of their receives."""
        now, after_us = self._engine.monotonic_us(), int(after * 1_000_000)
        due_wall_us = self._engine.now_us() + after_us if after_us else None
        return self._change(tx, agent, deliveries, _RELEASE, now, now + after_us, error, due_wall_us, uncounted)

    def undo(self, tx: Transaction, agent: int, deliveries: Sequence[Delivery], after: float) -> list[AckResult]:
        """Take back deliveries that their receiver did not handle; they cost no receive."""
        return self.release(tx, agent, deliveries, after, None, uncounted=1)

    def reject(
        self, tx: Transaction, agent: int, deliveries: Sequence[Delivery], reason: str, error: str | None
    ) -> list[AckResult]:
        now, now_us = self._engine.monotonic_us(), self._engine.now_us()

        def add_dead(row: Row) -> None:
            row = row if error is None else row._replace(error=error)
            self._add_dead(tx, agent, row, now_us=now_us, reason=reason)

        return self._change(tx, agent, deliveries, _TAKE, now, taken=add_dead)

    def _change(
        self,
        tx: Transaction,
        agent: int,
        deliveries: Sequence[Delivery],
        statement: str,
        *arguments: Any,
        taken: Callable[[Row], None] | None = None,
    ) -> list[AckResult]:
        """Change each lease by a statement that returns its group, and nothing if the receipt is stale."""
        check_deliveries(deliveries)
        results, touched = [], set()
        for delivery in deliveries:
            receipt = read_receipt(delivery.receipt)
            found: Any = one(tx.connection, statement, (*receipt, *arguments)) if receipt.agent == agent else None
            if found is None:
                message = f"message {delivery.message_id}: " if delivery.message_id else ""
                error = StaleReceipt(f"{message}the lease is over")
                results.append(AckResult(False, error))
            else:
                if taken is not None:
                    taken(Row(*found[1:]))
                touched.add(found[0])
                results.append(AckResult(True))
        for group in touched:
            regroup(tx, agent, group, self._engine.monotonic_us())
        if touched:
            tx.touch(channel(agent))
        return results

    def _keeps(self, tx: Transaction, agent: int, group: int, row: Row, event: StoredEvent | None, now_us: int) -> bool:
        """Return whether the message may be leased; else remove it."""
        if event is None or event.expires_us <= now_us:
            tx.connection.execute(_COUNT_EXPIRED, (agent,))
        elif event.is_damaged:
            # The messages beside it are delivered.
            self._add_dead(tx, agent, row, now_us=now_us, reason=DAMAGED)
        elif row.receives >= self._max_receives:
            self._add_dead(tx, agent, row, now_us=now_us)
        else:
            return True
        tx.connection.execute(_UNASIDE, (agent, group, row.turn))
        tx.connection.execute(_UNLEASE, (agent, row.turn))
        return False

    def _add_dead(self, tx: Transaction, agent: int, row: Row, *, now_us: int, reason: str | None = None) -> None:
        tx.must_be_durable()
        counts = (row.place, row.producer, row.receives, now_us)
        tx.connection.execute(_ADD_DEAD, (agent, next_places(tx, 1), *counts, text_of(row.error), reason))
        failpoints.hit("queue.dead_letter.before_commit")


def _exists(tx: Transaction, agent: int, group: int) -> bool:
    return one(tx.connection, _GROUP, (agent, group)) is not None
