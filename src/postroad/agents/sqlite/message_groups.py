"""Message groups of agents' queues: locked while leased, withheld while paused; redrive, replay and sweep."""

from __future__ import annotations

from typing import Final

import apsw

from postroad.agents.sqlite.tables import HELD, NEVER, channel, next_places
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
_SET_HEAD: Final = """
INSERT INTO agent_lane (lane, head) VALUES (?, ?) ON CONFLICT DO UPDATE SET head = excluded.head
"""
_ENDS: Final = """
SELECT coalesce((SELECT head FROM agent_lane WHERE lane = ?1), 0), (SELECT max(place) FROM agent_row WHERE lane = ?1)
"""
_ASIDE_ALL: Final = """
INSERT INTO agent_aside (lane, grp, turn, place, producer, replay)
SELECT held.lane, iif(?3 AND NOT coalesce(pair.paused, 0), 0, held.producer), held.place, held.place, held.producer, 0
FROM agent_row AS held
LEFT JOIN agent_pair AS pair ON pair.producer = held.producer AND pair.subscriber = held.lane
WHERE held.lane = ?1 AND held.place >= ?2
RETURNING grp
"""
_DEAD: Final = "SELECT n, place, producer FROM agent_dead WHERE lane = ? ORDER BY n LIMIT ?"
_DELETE_DEAD: Final = "DELETE FROM agent_dead WHERE lane = ? AND n = ?"
_PUT_ASIDE: Final = """
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
_STALE: Final = (
    _STALE_LEASES,
    _STALE_LEASES.replace("agent_lease", "agent_aside"),
    _STALE_LEASES.replace("agent_lease", "agent_dead"),
)
STEP: Final = 200
_OLDEST: Final = "SELECT place, expires_us FROM agent_event WHERE place < ? ORDER BY place LIMIT 1"
_ALIVE: Final = "SELECT place FROM agent_event WHERE place < ? AND expires_us > ? ORDER BY place LIMIT 1"
_SWEPT: Final = "SELECT swept_lane FROM agent_counter"
_SET_SWEPT: Final = "UPDATE agent_counter SET swept_lane = ?"
_AGENTS: Final = "SELECT num FROM agent WHERE num > ? ORDER BY num LIMIT ?"
_UNSEEN: Final = """
SELECT count(*) FROM agent_row WHERE lane = ?1 AND place <= ?2
AND place >= coalesce((SELECT head FROM agent_lane WHERE agent_lane.lane = ?1), 0)
"""
_COUNT: Final = """
INSERT INTO agent_lane (lane, expired) VALUES (?, ?) ON CONFLICT DO UPDATE SET expired = expired + excluded.expired
"""
_SWEEP_ROWS: Final = "DELETE FROM agent_row WHERE lane = ? AND place <= ?"
_UNSETTLED: Final = (
    "DELETE FROM agent_lease WHERE lane = ?1 AND place <= ?2 RETURNING grp",
    "DELETE FROM agent_aside WHERE lane = ?1 AND place <= ?2 RETURNING grp",
)
_SWEEP_DEAD: Final = "DELETE FROM agent_dead WHERE lane = ? AND place <= ?"
_SWEEP_EVENTS: Final = "DELETE FROM agent_event WHERE place <= ? AND expires_us <= ?"


def is_total(connection: apsw.Connection, agent: int) -> bool:
    """Return whether the agent wants one order over all producers."""
    return bool(one(connection, _IS_TOTAL, (agent,))[0])


def regroup(tx: Transaction, agent: int, group: int, monotonic_us: int) -> None:
    """Set when the group is free again after its leases or rows changed; remove it when it is empty."""
    leases, locked_until = one(tx.connection, _LEASES, (agent, group))
    if not leases and one(tx.connection, _HAS_ASIDE, (agent, group)) is None:
        tx.connection.execute(_DELETE, (agent, group))
        return
    if group != TOTAL and is_paused(tx.connection, agent, group):
        tx.connection.execute(_SET, (agent, group, NEVER))
        return
    # A group that becomes free goes behind those that are free already, so that none starves.
    lock(tx, agent, group, max(locked_until or 0, monotonic_us))
    if (locked_until or 0) <= monotonic_us:
        tx.touch(channel(agent))


def lock(tx: Transaction, agent: int, group: int, until_us: int) -> None:
    """Lease nothing more of the group until then."""
    tx.connection.execute(_SET, (agent, group, until_us))


def is_paused(connection: apsw.Connection, agent: int, producer: int) -> bool:
    row = one(connection, _IS_PAUSED, (producer, agent))
    return row is not None and bool(row[0])


def pause(tx: Transaction, agent: int, producer: int, monotonic_us: int) -> bool:
    """Withhold the producer's events; return False without such a subscription."""
    if one(tx.connection, _SET_PAUSED, (1, producer, agent)) is None:
        return False
    if is_total(tx.connection, agent):
        _move(tx, agent, producer, TOTAL, producer)
        regroup(tx, agent, TOTAL, monotonic_us)
    regroup(tx, agent, producer, monotonic_us)
    return True


def resume(tx: Transaction, agent: int, producer: int, monotonic_us: int) -> bool:
    """Deliver the producer's events again; return False without such a subscription."""
    found = one(tx.connection, _SET_PAUSED, (0, producer, agent)) is not None
    if is_total(tx.connection, agent):
        _move(tx, agent, producer, producer, TOTAL)
        regroup(tx, agent, TOTAL, monotonic_us)
    regroup(tx, agent, producer, monotonic_us)
    tx.touch(channel(agent))
    return found


def discard(tx: Transaction, agent: int, producer: int, monotonic_us: int) -> None:
    for statement in _DISCARD:
        tx.connection.execute(statement, (agent, producer))
    for group in (TOTAL, producer):
        regroup(tx, agent, group, monotonic_us)


def set_all_aside(tx: Transaction, agent: int, monotonic_us: int) -> None:
    """Move the head to the end of the queue, so that everything unsettled is behind it."""
    head, last = one(tx.connection, _ENDS, (agent,))
    if last is None or last < head:
        return
    total = is_total(tx.connection, agent)
    touched = {group for (group,) in every(tx.connection, _ASIDE_ALL, (agent, head, total))}
    set_head(tx, agent, last + 1)
    for group in touched:
        regroup(tx, agent, group, monotonic_us)


def set_head(tx: Transaction, agent: int, head: int) -> None:
    """Store that receivers have seen everything before this place."""
    tx.connection.execute(_SET_HEAD, (agent, head))


def _move(tx: Transaction, agent: int, producer: int, source: int, target: int) -> None:
    for statement in _MOVE:
        tx.connection.execute(statement, (agent, producer, target, source))


def redrive(tx: Transaction, agent: int, limit: int, monotonic_us: int) -> int:
    """Put up to `limit` dead letters behind what waits, oldest first; return how many."""
    dead = every(tx.connection, _DEAD, (agent, limit))
    if not dead:
        return 0
    set_all_aside(tx, agent, monotonic_us)
    first = next_places(tx, len(dead))
    total = is_total(tx.connection, agent)
    touched = set()
    for offset, (n, place, producer) in enumerate(dead):
        group = _group(tx, agent, producer, total)
        touched.add(group)
        tx.connection.execute(_PUT_ASIDE, (agent, group, first + offset, place, producer, 0))
        tx.connection.execute(_DELETE_DEAD, (agent, n))
    for group in touched:
        regroup(tx, agent, group, monotonic_us)
    tx.touch(channel(agent))
    return len(dead)


def replay(tx: Transaction, agent: int, producer: int, monotonic_us: int, *, since_ms: int, now_us: int) -> int | None:
    """Put the producer's rows from then on before anything newer and end their leases.

    Return how many, or None without such a subscription.
    """
    if one(tx.connection, _IS_PAUSED, (producer, agent)) is None:
        return None
    set_all_aside(tx, agent, monotonic_us)
    wanted = (agent, producer, since_ms, now_us)
    places = [place for (place,) in every(tx.connection, _REPLAYED, wanted)]
    group = _group(tx, agent, producer, is_total(tx.connection, agent))
    for statement in _STALE:
        tx.connection.execute(statement, wanted)
    tx.connection.executemany(_PUT_ASIDE, [(agent, group, place, place, producer, 1) for place in places])
    regroup(tx, agent, group, monotonic_us)
    tx.touch(channel(agent))
    return len(places)


def _group(tx: Transaction, agent: int, producer: int, total: bool) -> int:
    return TOTAL if total and not is_paused(tx.connection, agent, producer) else producer


def sweep(tx: Transaction, *, now_us: int, monotonic_us: int) -> bool:
    """Remove what has expired from some queues; return whether there is more to do.

    Queues are swept in turn, and the events themselves after all queues.
    """
    oldest = one(tx.connection, _OLDEST, (HELD,))
    if oldest is None or oldest[1] > now_us:
        return False
    alive = one(tx.connection, _ALIVE, (HELD, now_us))
    horizon = HELD - 1 if alive is None else alive[0] - 1
    agents = every(tx.connection, _AGENTS, (one(tx.connection, _SWEPT)[0], STEP))
    for (agent,) in agents:
        _sweep_queue(tx, agent, horizon, monotonic_us)
    if len(agents) == STEP:
        tx.connection.execute(_SET_SWEPT, (agents[-1][0],))
        return True
    tx.connection.execute(_SWEEP_EVENTS, (horizon, now_us))
    tx.connection.execute(_SET_SWEPT, (0,))
    return False


def _sweep_queue(tx: Transaction, agent: int, horizon: int, monotonic_us: int) -> None:
    unseen = int(one(tx.connection, _UNSEEN, (agent, horizon))[0])
    gone = [group for statement in _UNSETTLED for (group,) in every(tx.connection, statement, (agent, horizon))]
    if unseen or gone:
        tx.connection.execute(_COUNT, (agent, unseen + len(gone)))
    tx.connection.execute(_SWEEP_ROWS, (agent, horizon))
    tx.connection.execute(_SWEEP_DEAD, (agent, horizon))
    for group in set(gone):
        regroup(tx, agent, group, monotonic_us)
