"""Removing events that outlived their retention, with the rows that point at them."""

from __future__ import annotations

from typing import Final

from postroad.agents.sqlite import groups
from postroad.agents.sqlite.schema import HELD
from postroad.engine.transaction import Transaction, every, one

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
_DEAD: Final = "DELETE FROM agent_dead WHERE lane = ? AND place <= ?"
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
    tx.connection.execute(_DEAD, (lane, horizon))
    for group in set(gone):
        groups.regroup(tx, lane, group, monotonic_us)
