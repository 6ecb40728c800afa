"""Leases of agents' queues: claim, ack, extend, release, undo and reject; and how messages become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from postroad import failpoints
from postroad.agents.sqlite.message_groups import TOTAL, lock, regroup, set_head
from postroad.agents.sqlite.tables import DAMAGED, NEVER, Reader, Receipt, Row, StoredEvent, channel, next_places
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
    """Leases the messages of one agent's queue to receivers, and ends and extends the leases, in one transaction."""

    def __init__(self, tx: Transaction, engine: Engine, reader: Reader, agent: int, max_receives: int | None) -> None:
        self._tx = tx
        self._connection = tx.connection
        self._reader = reader
        self._agent = agent
        self._max_receives = max_receives
        self._now_us, self._monotonic_us = engine.now_us(), engine.monotonic_us()

    def claim(self, limit: int, visibility_us: int) -> tuple[list[Delivery], bool]:
        """Lease up to `limit` messages; return them and whether another claim may find more."""
        found = one(self._connection, _QUEUE, (self._agent,))
        if found is None:
            raise QueueNotFound("the agent was deleted")
        total, head = found
        until_us = self._monotonic_us + visibility_us
        taken: set[int] = set()
        given, dropped = self._returned(limit, taken)
        locked = bool(total) and TOTAL not in taken and self._exists(TOTAL)
        more = dropped
        if len(given) < limit and not locked:
            more = self._fresh(bool(total), head, limit, given, taken) or dropped
        for group in {entry.group for entry in given}:
            lock(self._tx, self._agent, group, until_us)
        return self._lease(given, until_us), more

    def _returned(self, limit: int, taken: set[int]) -> tuple[list[_Given], bool]:
        """Return messages of free groups behind the head; add the groups that gave all they had to `taken`."""
        given: list[_Given] = []
        dropped = False
        for (group,) in every(self._connection, _FREE, (self._agent, self._monotonic_us, limit)):
            wanted = limit - len(given)
            if not wanted:
                break
            rows = [Row(*row) for row in every(self._connection, _OF_GROUP, (self._agent, group, wanted + 1))]
            alive = list(self._alive(group, rows[:wanted]))
            given += alive
            dropped = dropped or len(alive) < len(rows[:wanted])
            if not alive:
                self._regroup(group)
            if len(rows) <= wanted:
                taken.add(group)
        return given, dropped

    def _alive(self, group: int, rows: list[Row]) -> Iterator[_Given]:
        for row in rows:
            event = self._reader.event(self._connection, self._agent, row.place)
            if self._keeps(group, row, event) and event is not None:
                yield _Given(row, group, event)

    def _fresh(self, total: bool, head: int, limit: int, given: list[_Given], taken: set[int]) -> bool:
        """Go on from the head, set aside what has to wait for its group, and return whether rows are left."""
        start, more = head, True
        asides: list[tuple[int, ...]] = []
        paused_groups: set[int] = set()
        for look in range(_LOOKS):
            size = _LOOK if look else limit - len(given)
            rows: list[Any] = every(self._connection, _FRESH, (self._agent, head, size))
            for place, producer, paused in rows:
                if len(given) == limit:
                    break
                head = place + 1
                group = TOTAL if total and not paused else producer
                if paused or (group not in taken and self._exists(group)):
                    asides.append((self._agent, group, place, place, producer))
                    paused_groups.update([group] if paused else ())
                    continue
                taken.add(group)
                given += self._alive(group, [Row(place, place, producer, 0, None, None, 0, False)])
            if len(given) == limit or len(rows) < size:
                more = len(rows) == size
                break
        self._connection.executemany(_ASIDE, asides)
        for group in paused_groups:
            lock(self._tx, self._agent, group, NEVER)
        if head != start:
            set_head(self._tx, self._agent, head)
        return more

    def _lease(self, given: list[_Given], until_us: int) -> list[Delivery]:
        if not given:
            return []
        agent, fence = self._agent, Receipt.new_fence()
        unasides = [(agent, entry.group, entry.row.turn) for entry in given if entry.row.aside]
        self._connection.executemany(_UNASIDE, unasides)
        common = (until_us, fence, self._monotonic_us)
        leases = [
            (agent, *row[:3], group, *common, row.receives + 1, row.first_us or self._now_us, row.replay)
            for row, group, _ in given
        ]
        self._connection.executemany(_LEASE, leases)
        return [
            Delivery(
                message_id=self._reader.message_id(agent, row.place),
                body=self._reader.body(self._connection, agent, event, replay=bool(row.replay)),
                attributes={},
                group=self._reader.group(self._connection, agent, group),
                receipt=Receipt(agent, row.turn, fence).text,
                receive_count=row.receives + 1,
                sent_at=moment(event.arrived_us),
                first_received_at=moment(row.first_us or self._now_us),
                sequence=row.turn,
            )
            for row, group, event in given
        ]

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = self._change(deliveries, _ACK)
        failpoints.hit("queue.ack.before_commit")
        return results

    def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[AckResult]:
        """Move the end of the leases, at most twelve hours from the receive."""
        return self._change(deliveries, _EXTEND, self._monotonic_us + int(seconds * 1_000_000), _MAX_US)

    def release(
        self, deliveries: Sequence[Delivery], after: float, error: str | None, uncounted: int = 0
    ) -> list[AckResult]:
        """End the leases without settling the messages, and take back so many of their receives."""
        after_us = int(after * 1_000_000)
        due_wall_us = self._now_us + after_us if after_us else None
        return self._change(deliveries, _RELEASE, self._monotonic_us + after_us, error, due_wall_us, uncounted)

    def undo(self, deliveries: Sequence[Delivery], after: float) -> list[AckResult]:
        """Take back deliveries that their receiver did not handle; they cost no receive."""
        return self.release(deliveries, after, None, uncounted=1)

    def reject(self, deliveries: Sequence[Delivery], reason: str, error: str | None) -> list[AckResult]:
        def add_dead(row: Row) -> None:
            self._add_dead(row if error is None else row._replace(error=error), reason)

        return self._change(deliveries, _TAKE, taken=add_dead)

    def _change(
        self,
        deliveries: Sequence[Delivery],
        statement: str,
        *arguments: Any,
        taken: Callable[[Row], None] | None = None,
    ) -> list[AckResult]:
        """Change each lease by a statement that returns its group, and nothing if the receipt is stale."""
        check_deliveries(deliveries)
        results, touched = [], set()
        for delivery in deliveries:
            receipt, now = Receipt.read(delivery.receipt), self._monotonic_us
            ours = receipt.agent == self._agent
            found: Any = one(self._connection, statement, (*receipt, now, *arguments)) if ours else None
            if found is None:
                message = f"message {delivery.message_id}: " if delivery.message_id else ""
                results.append(AckResult(False, StaleReceipt(f"{message}the lease is over")))
            else:
                if taken is not None:
                    taken(Row(*found[1:]))
                touched.add(found[0])
                results.append(AckResult(True))
        for group in touched:
            self._regroup(group)
        if touched:
            self._tx.touch(channel(self._agent))
        return results

    def _keeps(self, group: int, row: Row, event: StoredEvent | None) -> bool:
        """Return whether the message may be leased; else remove it."""
        if event is None or event.expires_us <= self._now_us:
            self._connection.execute(_COUNT_EXPIRED, (self._agent,))
        elif event.is_damaged:
            # The messages beside it are delivered.
            self._add_dead(row, DAMAGED)
        elif self._max_receives is not None and row.receives >= self._max_receives:
            self._add_dead(row, None)
        else:
            return True
        self._connection.execute(_UNASIDE, (self._agent, group, row.turn))
        self._connection.execute(_UNLEASE, (self._agent, row.turn))
        return False

    def _add_dead(self, row: Row, reason: str | None) -> None:
        self._tx.must_be_durable()
        counts = (row.place, row.producer, row.receives, self._now_us)
        place = (self._agent, next_places(self._tx, 1))
        self._connection.execute(_ADD_DEAD, (*place, *counts, text_of(row.error), reason))
        failpoints.hit("queue.dead_letter.before_commit")

    def _exists(self, group: int) -> bool:
        return one(self._connection, _GROUP, (self._agent, group)) is not None

    def _regroup(self, group: int) -> None:
        regroup(self._tx, self._agent, group, self._monotonic_us)
