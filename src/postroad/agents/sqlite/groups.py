"""Groups of a lane: locked while one of their messages is with a receiver, withheld while paused, gone when empty."""

from __future__ import annotations

from typing import Final

import apsw

from postroad.agents.sqlite.names import channel
from postroad.agents.sqlite.schema import NEVER
from postroad.engine import Transaction, every, one

TOTAL: Final = 0
"""The one group of an agent whose order is total."""
_IS_TOTAL: Final = "SELECT total FROM agent WHERE num = ?"
_IS_PAUSED: Final = "SELECT paused FROM agent_pair WHERE producer = ? AND subscriber = ?"
_LEASES: Final = "SELECT count(*), max(visible_us) FROM agent_lease WHERE lane = ? AND grp = ?"
_HAS_ASIDE: Final = "SELECT 1 FROM agent_aside WHERE lane = ? AND grp = ? LIMIT 1"
_SET: Final = """
INSERT INTO agent_group (lane, grp, visible_us) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET visible_us = excluded.visible_us
"""
_DELETE: Final = "DELETE FROM agent_group WHERE lane = ? AND grp = ?"
_SET_PAUSED: Final = "UPDATE agent_pair SET paused = ? WHERE producer = ? AND subscriber = ? RETURNING 1"
_MOVE: Final = (
    "UPDATE agent_lease SET grp = ?3 WHERE lane = ?1 AND producer = ?2 AND grp = ?4",
    "UPDATE agent_aside SET grp = ?3 WHERE lane = ?1 AND producer = ?2 AND grp = ?4",
)
_DISCARD: Final = (
    "DELETE FROM agent_lease WHERE lane = ?1 AND producer = ?2",
    "DELETE FROM agent_aside WHERE lane = ?1 AND producer = ?2",
    """
    DELETE FROM agent_row WHERE lane = ?1 AND producer = ?2
    AND place >= coalesce((SELECT head FROM agent_lane WHERE agent_lane.lane = ?1), 0)
    """,
    "DELETE FROM agent_held_row WHERE lane = ?1 AND producer = ?2",
)
_HEAD: Final = "SELECT head FROM agent_lane WHERE lane = ?"
_SET_HEAD: Final = """
INSERT INTO agent_lane (lane, head) VALUES (?, ?) ON CONFLICT DO UPDATE SET head = excluded.head
"""
_BEHIND: Final = "SELECT max(place) FROM agent_row WHERE lane = ?"
_ASIDE_ALL: Final = """
INSERT INTO agent_aside (lane, grp, turn, place, producer, replay)
SELECT held.lane, iif(?3 AND NOT coalesce(pair.paused, 0), 0, held.producer), held.place, held.place, held.producer, 0
FROM agent_row AS held
LEFT JOIN agent_pair AS pair ON pair.producer = held.producer AND pair.subscriber = held.lane
WHERE held.lane = ?1 AND held.place >= ?2
RETURNING grp
"""


def is_total(connection: apsw.Connection, lane: int) -> bool:
    """Whether the agent wants one order over all producers."""
    return bool(one(connection, _IS_TOTAL, (lane,))[0])


def regroup(tx: Transaction, lane: int, group: int, monotonic_us: int) -> None:
    """Set when the group is free again after its leases or rows changed; forget it when it is empty."""
    leases, locked_until = one(tx.connection, _LEASES, (lane, group))
    if not leases and one(tx.connection, _HAS_ASIDE, (lane, group)) is None:
        tx.connection.execute(_DELETE, (lane, group))
        return
    if group != TOTAL and is_paused(tx.connection, lane, group):
        tx.connection.execute(_SET, (lane, group, NEVER))
        return
    # A group that becomes free goes behind those that are free already, so that none starves.
    lock(tx, lane, group, max(locked_until or 0, monotonic_us))
    if (locked_until or 0) <= monotonic_us:
        tx.touch(channel(lane))


def lock(tx: Transaction, lane: int, group: int, until_us: int) -> None:
    """Give nothing more of the group until then."""
    tx.connection.execute(_SET, (lane, group, until_us))


def is_paused(connection: apsw.Connection, lane: int, producer: int) -> bool:
    """Whether the producer's events are withheld."""
    row = one(connection, _IS_PAUSED, (producer, lane))
    return row is not None and bool(row[0])


def is_pair(connection: apsw.Connection, lane: int, producer: int) -> bool:
    """Whether the lane's agent listens to the producer."""
    return one(connection, _IS_PAUSED, (producer, lane)) is not None


def pause(tx: Transaction, lane: int, producer: int, monotonic_us: int) -> bool:
    """Withhold the producer's events; False without such a subscription."""
    if one(tx.connection, _SET_PAUSED, (1, producer, lane)) is None:
        return False
    if is_total(tx.connection, lane):
        _move(tx, lane, producer, TOTAL, producer)
        regroup(tx, lane, TOTAL, monotonic_us)
    regroup(tx, lane, producer, monotonic_us)
    return True


def resume(tx: Transaction, lane: int, producer: int, monotonic_us: int) -> bool:
    """Let the producer's events go again; False without such a subscription."""
    found = one(tx.connection, _SET_PAUSED, (0, producer, lane)) is not None
    if is_total(tx.connection, lane):
        _move(tx, lane, producer, producer, TOTAL)
        regroup(tx, lane, TOTAL, monotonic_us)
    regroup(tx, lane, producer, monotonic_us)
    tx.touch(channel(lane))
    return found


def discard(tx: Transaction, lane: int, producer: int, monotonic_us: int) -> None:
    """Remove what waits of the producer."""
    for statement in _DISCARD:
        tx.connection.execute(statement, (lane, producer))
    for group in (TOTAL, producer):
        regroup(tx, lane, group, monotonic_us)


def set_all_aside(tx: Transaction, lane: int, monotonic_us: int) -> None:
    """Look at the whole lane, so that everything unsettled stands behind its head."""
    head = head_of(tx.connection, lane)
    last = one(tx.connection, _BEHIND, (lane,))[0]
    if last is None or last < head:
        return
    total = is_total(tx.connection, lane)
    touched = {group for (group,) in every(tx.connection, _ASIDE_ALL, (lane, head, total))}
    set_head(tx, lane, last + 1)
    for group in touched:
        regroup(tx, lane, group, monotonic_us)


def head_of(connection: apsw.Connection, lane: int) -> int:
    """The first place that no receiver has looked at."""
    row = one(connection, _HEAD, (lane,))
    return 0 if row is None else int(row[0])


def set_head(tx: Transaction, lane: int, head: int) -> None:
    """Everything before this place was looked at."""
    tx.connection.execute(_SET_HEAD, (lane, head))


def _move(tx: Transaction, lane: int, producer: int, source: int, target: int) -> None:
    for statement in _MOVE:
        tx.connection.execute(statement, (lane, producer, target, source))
