"""Agents in the embedded file. An event is written once, and a small row for each subscriber."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

from postroad import failpoints
from postroad.agents.model import AgentSettings, EventDelivery, LaneStats
from postroad.agents.port import FanOut
from postroad.agents.sqlite import message_groups
from postroad.agents.sqlite.history import AgentHistory
from postroad.agents.sqlite.queue import EVERY_QUEUE, SQLiteAgentQueue, count, dead_letters
from postroad.agents.sqlite.registry import SQLiteRegistry, SQLiteSubscriptions
from postroad.agents.sqlite.tables import HELD, Reader, active, channel, microseconds, next_places, number, prepare
from postroad.agents.stream import Rejected, StreamEvent, merged
from postroad.engine import Engine, Listener, Transaction, every, one
from postroad.queues import MAX_MESSAGE_BYTES, OutgoingMessage, PeekedMessage, Queue, embedded_traits
from postroad.streams import Shard, Stream, shard_of

MOST_WOKEN: Final = 1_000
"""So many queues are woken by name: the names of a hundred thousand would cost more memory than the rows do."""
_SWEEP_EVERY: Final = 60.0
_ALL: Final = 1 << 31
_SHARDS: Final = """
SELECT shard.id FROM stream_shards AS shard JOIN streams ON streams.id = shard.stream WHERE streams.name = ?
"""
# Sequences of one shard are compared by number; a pair that was made on another stream, by its time.
_LISTENS: Final = "iif(after >> 40 = ?3 >> 40, after < ?3, created_us <= ?4)"
_TAKES: Final = """
(types IS NULL OR EXISTS (SELECT 1 FROM json_each(types)
    WHERE value = ?5 OR (substr(value, -2) = '.*'
        AND substr(?5, 1, length(value) - 1) = substr(value, 1, length(value) - 1))))
"""
_ROWS: Final = f"""
INSERT INTO agent_row (lane, place, producer)
SELECT subscriber, ?1, ?2 FROM agent_pair AS pair WHERE producer = ?2 AND {_LISTENS} AND {_TAKES}
"""  # noqa: S608 - a constant
_HELD_ROWS: Final = _ROWS.replace("agent_row (lane, place, producer)", "agent_held_row (lane, place, producer)")
_UNSEEN: Final = """
AND NOT EXISTS (
    SELECT 1 FROM agent_event AS event WHERE event.producer = ?2 AND event.event_id = ?6 AND event.expires_us > ?7
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
_LISTENERS: Final = "SELECT subscriber FROM agent_pair WHERE producer = ? LIMIT ?"
_HELD_FOR: Final = "SELECT lane FROM agent_held_row WHERE place = ? LIMIT ?"


class _HeldEvent(NamedTuple):
    """An event that waits for the end of the hold-back window."""

    place: int
    producer_id: str
    occurred_ms: int


class SQLiteAgentStore:
    """The agents of one file; `rejected` opens the queue of rejects, and creates it if it is missing."""

    runs_here = True

    def __init__(
        self,
        engine: Engine,
        stream: Stream,
        rejected: Callable[[], Queue],
        settings: AgentSettings,
        *,
        durable: bool = True,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._rejected = rejected
        self._delay_us = int(settings.dispatch_delay * 1_000_000)
        self._retention_us = int(settings.retention * 1_000_000)
        self._swept_at = float("-inf")
        prepare(engine)
        self.registry = SQLiteRegistry(engine)
        self.subscriptions = SQLiteSubscriptions(engine, self._newest)
        self._traits = embedded_traits(
            fifo=True,
            durable=durable,
            auto_deletes=False,
            max_message_bytes=MAX_MESSAGE_BYTES,
            visibility=settings.visibility,
            max_receives=settings.max_receives,
        )
        self._reader = Reader(engine.salt)

    def provision(self) -> None:
        """Do nothing: the file has its tables."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit rows and positions together; a power cut takes both back, and the stream has the events."""
        return self._engine.transaction(durable=False) if self._stream.traits.joins_writes else nullcontext()

    def fan_out(self, events: Sequence[StreamEvent]) -> FanOut:
        written = self._engine.write(lambda tx: self._fan_out(tx, events)) if events else 0
        return FanOut(written, released=0 if self._delay_us else written)

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        self._rejected().send([OutgoingMessage(body=entry.to_json()) for entry in rejected])
        return ()

    def release_due(self) -> int:
        due = self.next_due_seconds()
        if due is None or due > 0:
            return 0
        return self._engine.write(
            lambda tx: self._release(tx, self._engine.now_us() - self._delay_us), durable=False, relieves=False
        )

    def next_due_seconds(self) -> float | None:
        row = self._engine.read(lambda connection: one(connection, _NEXT_DUE, (HELD,)))
        return None if row is None else (row[0] + self._delay_us - self._engine.now_us()) / 1_000_000

    def sweep(self) -> None:
        now = self._engine.clock.monotonic()
        if now - self._swept_at < _SWEEP_EVERY:
            return
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        sweep = partial(message_groups.sweep, now_us=now_us, monotonic_us=monotonic_us)
        if not self._engine.write(sweep, durable=False, removes=True):
            self._swept_at = now

    def listen(self) -> AbstractContextManager[Listener] | None:
        """Return a listener that is woken by the stream; None when the stream is not in this file."""
        if not self._stream.traits.joins_writes:
            return None
        shards = self._engine.read(lambda connection: every(connection, _SHARDS, (self._stream.name,)))
        return self._engine.listen(*[Shard(id=num, place=0).channel for (num,) in shards]) if shards else None

    def queue(self, agent_id: str) -> SQLiteAgentQueue:
        agent = self._engine.read(lambda connection: active(connection, agent_id))
        return SQLiteAgentQueue(self._engine, self._reader, self._traits, agent_id, agent)

    def stats(self, agent_id: str) -> LaneStats:
        return self._engine.read(lambda connection: count(connection, active(connection, agent_id), self._engine))

    def dead_letters(self, agent_id: str, limit: int, after: str | None = None) -> list[PeekedMessage]:
        reader, behind = self._reader, int(after or 0)
        return self._engine.read(
            lambda connection: dead_letters(connection, reader, active(connection, agent_id), limit=limit, after=behind)
        )

    def deliveries(self, name: str) -> list[EventDelivery]:
        return AgentHistory(self._engine, self._reader).deliveries(name)

    def redrive(self, agent_id: str, limit: int | None) -> int:
        most, now_us = _ALL if limit is None else limit, self._engine.monotonic_us()
        return self._engine.write(lambda tx: message_groups.redrive(tx, active(tx.connection, agent_id), most, now_us))

    def _newest(self, producer_id: str) -> int:
        shards = self._stream.shards()
        return int(self._stream.latest(shards[shard_of(producer_id, len(shards))]))

    def _fan_out(self, tx: Transaction, events: Sequence[StreamEvent]) -> int:
        """Write one row for each event and subscriber, held back or at once; return how many."""
        if not self._delay_us:
            self._release(tx, HELD)
        producers = {event.producer_id: number(tx.connection, event.producer_id) for event in events}
        place = next_places(tx, len(events)) + (HELD if self._delay_us else 0)
        written = 0
        heard: set[int] = set()
        for event in events:
            producer = producers[event.producer_id]
            added = 0 if producer is None else self._write(tx, place, producer, event)
            if producer is not None and added:
                written, place = written + added, place + 1
                heard.add(producer)
        if not self._delay_us:
            for producer in heard:
                _wake(tx, _LISTENERS, producer)
        failpoints.hit("agents.fan_out.before_commit")
        return written

    def _write(self, tx: Transaction, place: int, producer: int, event: StreamEvent) -> int:
        now_us, arrived_us = self._engine.now_us(), microseconds(event.arrived_at)
        kind, occurred_ms, traceparent, data = event.event_type, event.occurred_ms, event.traceparent, event.data
        statement = _HELD_ROWS if self._delay_us else _ROWS
        known = one(tx.connection, _KNOWN, (producer, event.event_id, now_us))
        if known is not None:
            # It was published before: those who have it do not get it again, and others get what was published first.
            kind, occurred_ms, traceparent, data = known
            statement += _UNSEEN
        arguments: tuple[Any, ...] = (place, producer, int(event.sequence), arrived_us, kind)
        if known is not None:
            arguments = (*arguments, event.event_id, now_us)
        tx.connection.execute(statement, arguments)
        count = tx.connection.changes()
        if count:
            times = (occurred_ms, arrived_us, arrived_us + self._retention_us)
            content = (event.sequence, traceparent, zlib.crc32(data), data)
            tx.connection.execute(_EVENT, (place, producer, event.event_id, kind, *times, *content))
        return count

    def _release(self, tx: Transaction, arrived_until_us: int) -> int:
        """Release the held events that arrived until then, merged by time; return how many rows."""
        released = 0
        while due := every(tx.connection, _DUE, (HELD, arrived_until_us, _STEP)):
            place = next_places(tx, len(due))
            for event in merged(_HeldEvent(held, str(producer), at) for held, producer, at in due):
                tx.connection.execute(_RELEASE, (event.place, place, event.occurred_ms))
                tx.connection.execute(_NEWEST, (event.place, event.occurred_ms))
                _wake(tx, _HELD_FOR, event.place)
                tx.connection.execute(_UNHOLD, (event.place,))
                released += tx.connection.changes()
                tx.connection.execute(_RENUMBER, (event.place, place))
                place += 1
        return released


def _wake(tx: Transaction, statement: str, key: int) -> None:
    """After the commit, wake the queues of these agents by name, or all queues if they are very many."""
    if EVERY_QUEUE in tx.channels:
        return
    room = max(0, MOST_WOKEN - len(tx.channels))
    agents = every(tx.connection, statement, (key, room + 1))
    tx.channels.update([channel(agent) for (agent,) in agents] if len(agents) <= room else [EVERY_QUEUE])
