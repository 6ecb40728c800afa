"""Bringing messages of an agent's queue back, and removing events that outlived their retention."""

from __future__ import annotations

from typing import Final

from postroad.agents.sqlite import groups
from postroad.agents.sqlite.names import channel, next_places
from postroad.agents.sqlite.schema import HELD
from postroad.engine import Transaction, every, one

_DEAD: Final = "SELECT n, place, producer FROM agent_dead WHERE lane = ? ORDER BY n LIMIT ?"
_RISE: Final = "DELETE FROM agent_dead WHERE lane = ? AND n = ?"
_ASIDE: Final = """
INSERT INTO agent_aside (lane, grp, turn, place, producer, replay) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET replay = excluded.replay
"""
_REPLAYED: Final = """
SELECT held.place FROM agent_row AS held JOIN agent_event AS event ON event.place = held.place
WHERE held.lane = ? AND held.producer = ? AND event.occurred_ms >= ? AND event.expires_us > ? ORDER BY held.place
"""
_STALE_LEASES: Final = """
DELETE FROM agent_lease WHERE lane = ?1 AND producer = ?2 AND EXISTS (
    SELECT event.place FROM agent_event AS event
    WHERE event.place = agent_lease.place AND event.occurred_ms >= ?3 AND event.expires_us > ?4
)
"""
_STALE_ASIDE: Final = """
DELETE FROM agent_aside WHERE lane = ?1 AND producer = ?2 AND EXISTS (
    SELECT event.place FROM agent_event AS event
    WHERE event.place = agent_aside.place AND event.occurred_ms >= ?3 AND event.expires_us > ?4
)
"""
_STALE_DEAD: Final = """
DELETE FROM agent_dead WHERE lane = ?1 AND producer = ?2 AND EXISTS (
    SELECT event.place FROM agent_event AS event
    WHERE event.place = agent_dead.place AND event.occurred_ms >= ?3 AND event.expires_us > ?4
)
"""


def redrive(tx: Transaction, lane: int, limit: int, monotonic_us: int) -> int:
    """Put up to `limit` dead letters behind what waits, oldest first."""
    dead = every(tx.connection, _DEAD, (lane, limit))
    if not dead:
        return 0
    groups.set_all_aside(tx, lane, monotonic_us)
    first = next_places(tx, len(dead))
    total = groups.is_total(tx.connection, lane)
    touched = set()
    for offset, (n, place, producer) in enumerate(dead):
        group = _group(tx, lane, producer, total)
        touched.add(group)
        tx.connection.execute(_ASIDE, (lane, group, first + offset, place, producer, 0))
        tx.connection.execute(_RISE, (lane, n))
    for group in touched:
        groups.regroup(tx, lane, group, monotonic_us)
    tx.touch(channel(lane))
    return len(dead)


def replay(tx: Transaction, lane: int, producer: int, *, since_ms: int, now_us: int, monotonic_us: int) -> int:
    """Put the producer's rows from then on before anything newer; leases of them are over."""
    groups.set_all_aside(tx, lane, monotonic_us)
    wanted = (lane, producer, since_ms, now_us)
    places = [place for (place,) in every(tx.connection, _REPLAYED, wanted)]
    group = _group(tx, lane, producer, groups.is_total(tx.connection, lane))
    for statement in (_STALE_LEASES, _STALE_ASIDE, _STALE_DEAD):
        tx.connection.execute(statement, wanted)
    tx.connection.executemany(_ASIDE, [(lane, group, place, place, producer, 1) for place in places])
    groups.regroup(tx, lane, group, monotonic_us)
    tx.touch(channel(lane))
    return len(places)


def _group(tx: Transaction, lane: int, producer: int, total: bool) -> int:
    return groups.TOTAL if total and not groups.is_paused(tx.connection, lane, producer) else producer


STEP: Final = 200
_OLDEST: Final = "SELECT place, expires_us FROM agent_event WHERE place < ? ORDER BY place LIMIT 1"
_ALIVE: Final = "SELECT place FROM agent_event WHERE place < ? AND expires_us > ? ORDER BY place LIMIT 1"
_SWEPT: Final = "SELECT swept_lane FROM agent_counter"
_SET_SWEPT: Final = "UPDATE agent_counter SET swept_lane = ?"
_LANES: Final = "SELECT num FROM agent WHERE num > ? ORDER BY num LIMIT ?"
_UNSEEN: Final = """
SELECT count(*) FROM agent_row WHERE lane = ?1 AND place <= ?2
AND place >= coalesce((SELECT head FROM agent_lane WHERE agent_lane.lane = ?1), 0)
"""
_COUNT: Final = """
INSERT INTO agent_lane (lane, expired) VALUES (?, ?) ON CONFLICT DO UPDATE SET expired = expired + excluded.expired
"""
_ROWS: Final = "DELETE FROM agent_row WHERE lane = ? AND place <= ?"
_BEHIND: Final = (
    "DELETE FROM agent_lease WHERE lane = ?1 AND place <= ?2 RETURNING grp",
    "DELETE FROM agent_aside WHERE lane = ?1 AND place <= ?2 RETURNING grp",
)
_DEAD_OF_SWEEPING: Final = "DELETE FROM agent_dead WHERE lane = ? AND place <= ?"
_EVENTS: Final = "DELETE FROM agent_event WHERE place <= ? AND expires_us <= ?"


def sweep(tx: Transaction, *, now_us: int, monotonic_us: int) -> bool:
    """Sweep some lanes of what has expired; says whether there is more to do.

    Lanes are swept in turn, and the events themselves when all lanes were.
    """
    oldest = one(tx.connection, _OLDEST, (HELD,))
    if oldest is None or oldest[1] > now_us:
        return False
    alive = one(tx.connection, _ALIVE, (HELD, now_us))
    horizon = HELD - 1 if alive is None else alive[0] - 1
    lanes = every(tx.connection, _LANES, (one(tx.connection, _SWEPT)[0], STEP))
    for (lane,) in lanes:
        _sweep_lane(tx, lane, horizon, monotonic_us)
    if len(lanes) == STEP:
        tx.connection.execute(_SET_SWEPT, (lanes[-1][0],))
        return True
    tx.connection.execute(_EVENTS, (horizon, now_us))
    tx.connection.execute(_SET_SWEPT, (0,))
    return False


def _sweep_lane(tx: Transaction, lane: int, horizon: int, monotonic_us: int) -> None:
    unseen = int(one(tx.connection, _UNSEEN, (lane, horizon))[0])
    gone = [group for statement in _BEHIND for (group,) in every(tx.connection, statement, (lane, horizon))]
    if unseen or gone:
        tx.connection.execute(_COUNT, (lane, unseen + len(gone)))
    tx.connection.execute(_ROWS, (lane, horizon))
    tx.connection.execute(_DEAD_OF_SWEEPING, (lane, horizon))
    for group in set(gone):
        groups.regroup(tx, lane, group, monotonic_us)
