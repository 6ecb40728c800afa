"""Reading an agent's queue without touching it: peek, dead letters, counts, and when something is due."""

from __future__ import annotations

from typing import Any, Final

import apsw

from postroad.agents.model import LaneStats
from postroad.agents.sqlite.receipts import moment
from postroad.agents.sqlite.rows import Reader, StoredEvent
from postroad.agents.sqlite.settlement import DAMAGED
from postroad.agents.tables import lane_name
from postroad.engine import every, one, text_of
from postroad.errors import InvalidInput, QueueNotFound
from postroad.queues import MessageState, PeekedMessage, mark_dead

_HEAD: Final = "coalesce((SELECT head FROM agent_lane WHERE agent_lane.lane = ?1), 0)"
_DUE: Final = f"""
SELECT EXISTS (SELECT 1 FROM agent_row WHERE lane = ?1 AND place >= {_HEAD}),
    (SELECT min(visible_us) FROM agent_group WHERE lane = ?1),
    EXISTS (SELECT 1 FROM agent_group WHERE lane = ?1 AND grp = 0)
FROM agent WHERE num = ?1 AND state = 'active'
"""  # noqa: S608 - a constant
_PEEK: Final = f"""
SELECT turn, place, producer, receives, visible_us, held, replay FROM (
    SELECT turn, place, producer, receives, visible_us, held, replay FROM agent_lease WHERE lane = ?1
    UNION ALL SELECT turn, place, producer, 0, 0, 0, replay FROM agent_aside WHERE lane = ?1
    UNION ALL SELECT place, place, producer, 0, 0, 0, 0 FROM agent_row WHERE lane = ?1 AND place >= {_HEAD}
) WHERE turn > ?2 ORDER BY turn LIMIT ?3
"""  # noqa: S608 - a constant
_TURN: Final = """
SELECT max(turn) FROM (
    SELECT turn FROM agent_lease WHERE lane = ?1 AND place = ?2
    UNION ALL SELECT turn FROM agent_aside WHERE lane = ?1 AND place = ?2)
"""
_IS_TOTAL: Final = "SELECT total FROM agent WHERE num = ?"
_DEAD: Final = """
SELECT n, place, producer, receives, at_us, CAST(error AS BLOB), CAST(reason AS BLOB) FROM agent_dead
WHERE lane = ? AND n > ? ORDER BY n LIMIT ?
"""


def due_us(connection: apsw.Connection, lane: int) -> int | None:
    """When, on the monotonic clock, something may be received; 0 for now, None for not before the next release."""
    row = one(connection, _DUE, (lane,))
    if row is None:
        raise QueueNotFound("the agent was deleted")
    fresh, returned, total_group = row
    # A total order waits for its group, however much lies behind it.
    return 0 if fresh and not total_group else returned


def peek(
    connection: apsw.Connection,
    reader: Reader,
    lane: int,
    *,
    after: str | None,
    limit: int,
    monotonic_us: int,
    now_us: int,
) -> list[PeekedMessage]:
    """Messages in order, starting behind the message id `after`."""
    total = bool(one(connection, _IS_TOTAL, (lane,))[0])
    rows: list[Any] = every(connection, _PEEK, (lane, _turn(connection, reader, lane, after), limit))
    peeked = []
    for turn, place, producer, receives, visible_us, held, replay in rows:
        event = reader.event(connection, lane, place)
        if event is None or event.expires_us <= now_us:
            continue
        state: MessageState = "visible" if visible_us <= monotonic_us else "in_flight" if held else "delayed"
        peeked.append(
            PeekedMessage(
                message_id=reader.message_id(lane, place),
                body=reader.body(connection, lane, event, replay=bool(replay)),
                attributes=_damage(event),
                group=reader.group(connection, lane, 0 if total else producer),
                receive_count=receives,
                sent_at=moment(event.arrived_us),
                sequence=turn,
                state=state,
            )
        )
    return peeked


def dead_letters(
    connection: apsw.Connection, reader: Reader, lane: int, *, limit: int, after: int = 0
) -> list[PeekedMessage]:
    """The lane's dead letters behind the number `after`, oldest first, each with its `DeadLetter` marker."""
    source = lane_name(reader.group(connection, lane, 0))
    dead = []
    for n, place, producer, receives, at_us, error, reason in every(connection, _DEAD, (lane, after, limit)):
        event = reader.event(connection, lane, place)
        if event is None:
            continue
        marked = mark_dead(
            {"EventType": str(text_of(event.type))} | _damage(event),
            source=source,
            receives=receives,
            error=text_of(error),
            at=moment(at_us),
            reason=text_of(reason),
        )
        dead.append(
            PeekedMessage(
                message_id=reader.message_id(lane, place),
                body=reader.body(connection, lane, event, replay=False),
                attributes=marked,
                group=reader.group(connection, lane, producer),
                receive_count=receives,
                sent_at=moment(event.arrived_us),
                sequence=n,
                state="visible",
            )
        )
    return dead


def _damage(event: StoredEvent) -> dict[str, str]:
    return {"Damaged": DAMAGED} if event.is_damaged else {}


def _turn(connection: apsw.Connection, reader: Reader, lane: int, after: str | None) -> int:
    if after is None:
        return 0
    place = reader.place(lane, after)
    if place is None:
        raise InvalidInput(f"after: {after!r} is not a message id of this lane", field="after")
    return int(one(connection, _TURN, (lane, place))[0] or place)


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
_DEAD_OF_WAITING: Final = "SELECT count(*) FROM agent_dead WHERE lane = ?1"
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
        dead=one(connection, _DEAD_OF_WAITING, (lane,))[0],
        oldest_age_seconds=None if oldest_us is None else max(0.0, (now_us - oldest_us) / 1_000_000),
    )


def expired(connection: apsw.Connection, lane: int) -> int:
    """How many messages of the lane outlived their retention."""
    row = one(connection, _EXPIRED, (lane,))
    return 0 if row is None else int(row[0])
