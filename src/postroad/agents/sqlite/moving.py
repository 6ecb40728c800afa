"""Bringing messages of a lane back: dead letters behind what waits, replays before anything newer."""

from __future__ import annotations

from typing import Final

from postroad.agents.sqlite import groups
from postroad.agents.sqlite.names import channel, next_places
from postroad.engine.transaction import Transaction, every

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
