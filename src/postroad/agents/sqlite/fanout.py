"""Fan-out in the embedded file: an event is written once, and a small row for each subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from postroad import failpoints
from postroad.agents.delivery import merged
from postroad.agents.port import StreamEvent
from postroad.agents.sqlite import names
from postroad.agents.sqlite.receipts import microseconds
from postroad.agents.sqlite.rows import checksum
from postroad.agents.sqlite.schema import HELD
from postroad.agents.sqlite.waking import wake_held, wake_listeners
from postroad.engine import Engine, Transaction, every, one

# Sequences of one shard are told apart by number; a pair that was made on another stream, by its time.
_LISTENS: Final = "iif(after >> 40 = ?3 >> 40, after < ?3, created_us <= ?4)"
_ROWS: Final = f"""
INSERT INTO agent_row (lane, place, producer)
SELECT subscriber, ?1, ?2 FROM agent_pair AS pair WHERE producer = ?2 AND {_LISTENS}
"""  # noqa: S608 - a constant
_HELD_ROWS: Final = _ROWS.replace("agent_row (lane, place, producer)", "agent_held_row (lane, place, producer)")
_UNSEEN: Final = """
AND NOT EXISTS (
    SELECT 1 FROM agent_event AS event WHERE event.producer = ?2 AND event.event_id = ?5 AND event.expires_us > ?6
    AND (EXISTS (SELECT 1 FROM agent_row AS held WHERE held.lane = pair.subscriber AND held.place = event.place)
      OR EXISTS (SELECT 1 FROM agent_held_row AS held
                 WHERE held.lane = pair.subscriber AND held.place = event.place)))
"""
_KNOWN: Final = """
SELECT type, occurred_ms, traceparent, data FROM agent_event
WHERE producer = ? AND event_id = ? AND expires_us > ? ORDER BY arrived_us LIMIT 1
"""
_EVENT: Final = """
INSERT INTO agent_event
    (place, producer, event_id, type, occurred_ms, arrived_us, expires_us, sequence, traceparent, crc, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DUE: Final = """
SELECT place, producer, occurred_ms FROM agent_event WHERE place >= ? AND arrived_us <= ? ORDER BY place LIMIT ?
"""
_NEXT_DUE: Final = "SELECT arrived_us FROM agent_event WHERE place >= ? ORDER BY place LIMIT 1"
_RELEASE: Final = """
INSERT INTO agent_row (lane, place, producer, late)
SELECT held.lane, ?2, held.producer, ?3 < coalesce(lane.newest_ms, -1) FROM agent_held_row AS held
LEFT JOIN agent_lane AS lane ON lane.lane = held.lane WHERE held.place = ?1
"""
_NEWEST: Final = """
INSERT INTO agent_lane (lane, newest_ms) SELECT lane, ?2 FROM agent_held_row WHERE place = ?1
ON CONFLICT DO UPDATE SET newest_ms = max(newest_ms, excluded.newest_ms)
"""
_UNHOLD: Final = "DELETE FROM agent_held_row WHERE place = ?"
_RENUMBER: Final = "UPDATE agent_event SET place = ?2 WHERE place = ?1"
_STEP: Final = 1_000


class Fan:
    """Writes events into lanes, at once or after the hold-back window."""

    def __init__(self, engine: Engine, *, dispatch_delay: float, retention: float) -> None:
        self._engine = engine
        self._delay_us = int(dispatch_delay * 1_000_000)
        self._retention_us = int(retention * 1_000_000)

    @property
    def holds_back(self) -> bool:
        """Whether events wait before they are released."""
        return self._delay_us > 0

    def write(self, tx: Transaction, events: Sequence[StreamEvent]) -> int:
        """Write one row for each event and subscriber; how many."""
        if not events:
            return 0
        if not self._delay_us:
            self.release(tx, HELD)
        producers = {event.producer_id: names.number(tx.connection, event.producer_id) for event in events}
        place = names.next_places(tx, len(events)) + (HELD if self._delay_us else 0)
        written = 0
        heard: set[int] = set()
        for event in events:
            producer = producers[event.producer_id]
            count = 0 if producer is None else self._write(tx, place, producer, event)
            if producer is not None and count:
                written, place = written + count, place + 1
                heard.add(producer)
        if not self._delay_us:
            for producer in heard:
                wake_listeners(tx, producer)
        failpoints.hit("agents.fan_out.before_commit")
        return written

    def release(self, tx: Transaction, arrived_until_us: int) -> int:
        """Let the held events that arrived until then into their lanes, merged by timestamp; how many rows."""
        released = 0
        while due := every(tx.connection, _DUE, (HELD, arrived_until_us, _STEP)):
            place = names.next_places(tx, len(due))
            for event in merged(_HeldEvent(*row) for row in due):
                released += self._release(tx, event, place)
                place += 1
        return released

    def release_due(self, tx: Transaction) -> int:
        """Release what has waited for the whole window."""
        return self.release(tx, self._engine.now_us() - self._delay_us)

    def next_due_seconds(self) -> float | None:
        """How long until the next held event is due; None when none is held."""
        row = self._engine.read(lambda connection: one(connection, _NEXT_DUE, (HELD,)))
        return None if row is None else (row[0] + self._delay_us - self._engine.now_us()) / 1_000_000

    def _write(self, tx: Transaction, place: int, producer: int, event: StreamEvent) -> int:
        now_us, arrived_us = self._engine.now_us(), microseconds(event.arrived_at)
        kind, occurred_ms, traceparent, data = event.event_type, event.occurred_ms, event.traceparent, event.data
        statement = _HELD_ROWS if self._delay_us else _ROWS
        arguments: tuple[Any, ...] = (place, producer, int(event.sequence), arrived_us)
        known = one(tx.connection, _KNOWN, (producer, event.event_id, now_us))
        if known is not None:
            # Published before: those who have it get it no second time, and others get what was published first.
            kind, occurred_ms, traceparent, data = known
            statement, arguments = statement + _UNSEEN, (*arguments, event.event_id, now_us)
        tx.connection.execute(statement, arguments)
        count = tx.connection.changes()
        if count:
            expires_us = arrived_us + self._retention_us
            tx.connection.execute(
                _EVENT,
                (
                    place,
                    producer,
                    event.event_id,
                    kind,
                    occurred_ms,
                    arrived_us,
                    expires_us,
                    event.sequence,
                    traceparent,
                    checksum(data),
                    data,
                ),
            )
        return count

    def _release(self, tx: Transaction, event: _HeldEvent, place: int) -> int:
        tx.connection.execute(_RELEASE, (event.place, place, event.occurred_ms))
        tx.connection.execute(_NEWEST, (event.place, event.occurred_ms))
        wake_held(tx, event.place)
        tx.connection.execute(_UNHOLD, (event.place,))
        released = tx.connection.changes()
        tx.connection.execute(_RENUMBER, (event.place, place))
        return released


class _HeldEvent:
    """An event that waits for the end of the window."""

    __slots__ = ("occurred_ms", "place", "producer_id")

    def __init__(self, place: int, producer: int, occurred_ms: int) -> None:
        self.place = place
        self.producer_id = str(producer)
        self.occurred_ms = occurred_ms
