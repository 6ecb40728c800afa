"""Counting what waits in a lane."""

from __future__ import annotations

from typing import Final

import apsw

from postroad.agents.model import LaneStats
from postroad.engine.transaction import one

_HEAD: Final = "coalesce((SELECT head FROM agent_lane WHERE agent_lane.lane = ?1), 0)"
_FRESH: Final = f"""
SELECT count(*), coalesce(sum(coalesce(pair.paused, 0)), 0) FROM agent_row AS held
LEFT JOIN agent_pair AS pair ON pair.producer = held.producer AND pair.subscriber = held.lane
WHERE held.lane = ?1 AND held.place >= {_HEAD}
"""  # noqa: S608 - a constant
_ASIDE: Final = """
SELECT count(*), coalesce(sum(coalesce(pair.paused, 0)), 0) FROM agent_aside AS aside
LEFT JOIN agent_pair AS pair ON pair.producer = aside.producer AND pair.subscriber = aside.lane
WHERE aside.lane = ?1
"""
_LEASED: Final = """
SELECT count(*), coalesce(sum(visible_us > ?2 AND held = 1), 0), coalesce(sum(visible_us > ?2 AND held = 0), 0),
    coalesce(sum(visible_us <= ?2 AND coalesce(pair.paused, 0)), 0)
FROM agent_lease AS lease
LEFT JOIN agent_pair AS pair ON pair.producer = lease.producer AND pair.subscriber = lease.lane
WHERE lease.lane = ?1
"""
_UNRELEASED: Final = "SELECT count(*) FROM agent_held_row WHERE lane = ?1"
_DEAD: Final = "SELECT count(*) FROM agent_dead WHERE lane = ?1"
_OLDEST: Final = f"""
SELECT min(arrived_us) FROM agent_event WHERE place IN (
    SELECT min(place) FROM agent_row WHERE lane = ?1 AND place >= {_HEAD}
    UNION ALL SELECT min(place) FROM agent_aside WHERE lane = ?1
    UNION ALL SELECT min(place) FROM agent_lease WHERE lane = ?1
    UNION ALL SELECT min(place) FROM agent_held_row WHERE lane = ?1)
"""  # noqa: S608 - a constant
_EXPIRED: Final = "SELECT expired FROM agent_lane WHERE lane = ?1"


def waiting(connection: apsw.Connection, lane: int) -> int:
    """How many messages are not settled yet."""
    statements = (_FRESH, _ASIDE, _UNRELEASED)
    unseen = sum(int(one(connection, statement, (lane,))[0]) for statement in statements)
    return unseen + int(one(connection, _LEASED, (lane, 0))[0])


def count(connection: apsw.Connection, lane: int, *, monotonic_us: int, now_us: int) -> LaneStats:
    """How much the lane holds, by state."""
    fresh, fresh_paused = one(connection, _FRESH, (lane,))
    aside, aside_paused = one(connection, _ASIDE, (lane,))
    leased, in_flight, delayed, back_paused = one(connection, _LEASED, (lane, monotonic_us))
    unreleased = one(connection, _UNRELEASED, (lane,))[0]
    paused = fresh_paused + aside_paused + back_paused
    oldest_us = one(connection, _OLDEST, (lane,))[0]
    return LaneStats(
        visible=fresh + aside + leased - in_flight - delayed - paused,
        in_flight=in_flight,
        delayed=delayed,
        held=paused + unreleased,
        dead=one(connection, _DEAD, (lane,))[0],
        oldest_age_seconds=None if oldest_us is None else max(0.0, (now_us - oldest_us) / 1_000_000),
    )


def expired(connection: apsw.Connection, lane: int) -> int:
    """How many messages of the lane outlived their retention."""
    row = one(connection, _EXPIRED, (lane,))
    return 0 if row is None else int(row[0])
