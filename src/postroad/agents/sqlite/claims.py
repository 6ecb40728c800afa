"""Leasing messages to a receiver: groups that came back first, then what was never looked at, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from postroad.agents.sqlite import groups
from postroad.agents.sqlite.receipts import Receipt, moment, new_fence
from postroad.agents.sqlite.rows import Reader, Row, StoredEvent
from postroad.agents.sqlite.schema import NEVER
from postroad.agents.sqlite.settlement import ExpiryRules
from postroad.engine import Engine, Transaction, every, one
from postroad.errors import QueueNotFound
from postroad.queues import Delivery

_LOOK: Final = 200
_LOOKS: Final = 25
_LANE: Final = """
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
    (lane, turn, place, producer, grp, visible_us, held, fence, receives, first_us, leased_us, replay)
VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET visible_us = excluded.visible_us, held = 1, fence = excluded.fence,
    receives = excluded.receives, leased_us = excluded.leased_us, due_wall_us = NULL
"""
_FROM_ASIDE: Final = "DELETE FROM agent_aside WHERE lane = ? AND grp = ? AND turn = ?"
_ASIDE: Final = "INSERT INTO agent_aside (lane, grp, turn, place, producer, replay) VALUES (?, ?, ?, ?, ?, 0)"


class Claimed(NamedTuple):
    """What was leased, and whether a further look may find more."""

    deliveries: list[Delivery]
    more: bool


class _Given(NamedTuple):
    row: Row
    group: int
    event: StoredEvent


class Claimer:
    """Gives the messages of lanes to receivers."""

    def __init__(self, engine: Engine, reader: Reader, expiry: ExpiryRules) -> None:
        self._engine = engine
        self._reader = reader
        self._expiry = expiry

    def claim(self, tx: Transaction, lane: int, *, limit: int, visibility_us: int) -> Claimed:
        """Lease up to `limit` messages."""
        found = one(tx.connection, _LANE, (lane,))
        if found is None:
            raise QueueNotFound("the agent was deleted")
        total, head = found
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        until_us = monotonic_us + visibility_us
        taken: set[int] = set()
        given, dropped = self._returned(tx, lane, limit, now_us, monotonic_us, taken)
        locked = bool(total) and groups.TOTAL not in taken and _exists(tx, lane, groups.TOTAL)
        more = dropped
        if len(given) < limit and not locked:
            more = self._fresh(tx, lane, bool(total), head, limit, now_us, given, taken) or dropped
        for group in {entry.group for entry in given}:
            groups.lock(tx, lane, group, until_us)
        return Claimed(self._lease(tx, lane, given, until_us, now_us, monotonic_us), more)

    def _returned(
        self, tx: Transaction, lane: int, limit: int, now_us: int, monotonic_us: int, taken: set[int]
    ) -> tuple[list[_Given], bool]:
        """Messages of free groups behind the head; `taken` gets the groups of which all were given."""
        given: list[_Given] = []
        dropped = False
        for (group,) in every(tx.connection, _FREE, (lane, monotonic_us, limit)):
            wanted = limit - len(given)
            if not wanted:
                break
            rows = [Row(*row) for row in every(tx.connection, _OF_GROUP, (lane, group, wanted + 1))]
            alive = list(self._alive(tx, lane, group, rows[:wanted], now_us))
            given += alive
            dropped = dropped or len(alive) < len(rows[:wanted])
            if not alive:
                groups.regroup(tx, lane, group, monotonic_us)
            if len(rows) <= wanted:
                taken.add(group)
        return given, dropped

    def _alive(self, tx: Transaction, lane: int, group: int, rows: list[Row], now_us: int) -> Iterator[_Given]:
        for row in rows:
            event = self._reader.event(tx.connection, lane, row.place)
            if self._expiry.keeps(tx, lane, group, row, event, now_us) and event is not None:
                yield _Given(row, group, event)

    def _fresh(
        self,
        tx: Transaction,
        lane: int,
        total: bool,
        head: int,
        limit: int,
        now_us: int,
        given: list[_Given],
        taken: set[int],
    ) -> bool:
        """Look on from the head; what its group does not allow yet is put aside. Says whether rows are left."""
        start, more = head, True
        asides: list[tuple[int, ...]] = []
        paused_groups: set[int] = set()
        for look in range(_LOOKS):
            size = _LOOK if look else limit - len(given)
            rows: list[Any] = every(tx.connection, _FRESH, (lane, head, size))
            for place, producer, paused in rows:
                if len(given) == limit:
                    break
                head = place + 1
                group = groups.TOTAL if total and not paused else producer
                if paused or (group not in taken and _exists(tx, lane, group)):
                    asides.append((lane, group, place, place, producer))
                    paused_groups.update([group] if paused else ())
                    continue
                taken.add(group)
                row = Row(place, place, producer, 0, None, None, 0, False)
                given += self._alive(tx, lane, group, [row], now_us)
            if len(given) == limit or len(rows) < size:
                more = len(rows) == size
                break
        tx.connection.executemany(_ASIDE, asides)
        for group in paused_groups:
            groups.lock(tx, lane, group, NEVER)
        if head != start:
            groups.set_head(tx, lane, head)
        return more

    def _lease(
        self, tx: Transaction, lane: int, given: list[_Given], until_us: int, now_us: int, monotonic_us: int
    ) -> list[Delivery]:
        if not given:
            return []
        fence = new_fence()
        tx.connection.executemany(
            _FROM_ASIDE, [(lane, entry.group, entry.row.turn) for entry in given if entry.row.aside]
        )
        tx.connection.executemany(
            _LEASE,
            [
                (
                    lane,
                    row.turn,
                    row.place,
                    row.producer,
                    group,
                    until_us,
                    fence,
                    row.receives + 1,
                    row.first_us or now_us,
                    monotonic_us,
                    row.replay,
                )
                for row, group, _ in given
            ],
        )
        return [self._delivery(tx, lane, entry, now_us, fence) for entry in given]

    def _delivery(self, tx: Transaction, lane: int, entry: _Given, now_us: int, fence: int) -> Delivery:
        row, group, event = entry
        receives = row.receives + 1
        return Delivery(
            message_id=self._reader.message_id(lane, row.place),
            body=self._reader.body(tx.connection, lane, event, replay=bool(row.replay)),
            attributes={},
            group=self._reader.group(tx.connection, lane, group),
            receipt=Receipt(lane, row.turn, fence).text,
            receive_count=receives,
            sent_at=moment(event.arrived_us),
            first_received_at=moment(row.first_us or now_us),
            sequence=row.turn,
        )


def _exists(tx: Transaction, lane: int, group: int) -> bool:
    return one(tx.connection, _GROUP, (lane, group)) is not None
