"""All queues of one file at once: their settings, contents and counters, in one read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec

from postroad.engine import Engine, every, one, text_of
from postroad.queues.port import QueueCounters, QueueOverview, QueueStats
from postroad.queues.sqlite.state import id_range, read_spec

# An empty queue costs only its row.
_EVERY: Final = """
SELECT queue.id, CAST(queue.name AS BLOB), CAST(queue.spec AS BLOB), size,
    CASE WHEN size > 0 THEN
        (SELECT count(*) FROM lease WHERE lease.queue = queue.id AND visible_us > ?1 AND held = 1) ELSE 0 END,
    CASE WHEN size > 0 THEN
        (SELECT count(*) FROM lease WHERE lease.queue = queue.id AND visible_us > ?1 AND held = 0) ELSE 0 END,
    CASE WHEN size > 0 THEN
        (SELECT sent_us FROM message WHERE id > queue.id << 40 AND id < (queue.id + 1) << 40 ORDER BY id LIMIT 1) END,
    CASE WHEN size > 0 THEN
        (SELECT min(sent_us) FROM message WHERE id >> 40 = queue.id AND origin IS NOT NULL) END,
    tally.sent, tally.received, tally.acked, tally.retried, tally.dead, tally.redriven, tally.expired
FROM queue JOIN tally ON tally.queue = queue.id
"""
_ALL: Final = f"{_EVERY} ORDER BY name"
_NAMED: Final = f"{_EVERY} WHERE name IN (SELECT value FROM json_each(?2)) ORDER BY name"  # noqa: S608 - a constant
_FIFO_DELAYED: Final = """
SELECT count(*) FROM message WHERE id > coalesce(
    (SELECT max(id) FROM message WHERE id > ?1 AND id < ?2 AND (due_us IS NULL OR due_us <= ?3)), ?1) AND id < ?2
"""
_DELETED: Final = "SELECT sent, received, acked, retried, dead, redriven, expired FROM deleted"


class Census:
    """Reads all queues, or those of some names; it changes nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, names: list[str] | None = None) -> list[QueueOverview]:
        """Return these queues, by default all, in the order of their names."""
        return self._engine.read(lambda connection: list(self._rows(connection, names)))

    def take_with_deleted(self) -> tuple[list[QueueOverview], QueueCounters]:
        """Return all queues, and what had happened on those that were deleted since."""
        return self._engine.read(
            lambda connection: (list(self._rows(connection, None)), QueueCounters(*one(connection, _DELETED)))
        )

    def _rows(self, connection: apsw.Connection, names: list[str] | None) -> Iterator[QueueOverview]:
        now_us = self._engine.monotonic_us()
        if names is None:
            rows = every(connection, _ALL, (now_us,))
        else:
            rows = every(connection, _NAMED, (now_us, msgspec.json.encode(names).decode()))
        for row in rows:
            yield self._overview(connection, row, now_us)

    def _overview(self, connection: apsw.Connection, row: tuple[Any, ...], now_us: int) -> QueueOverview:
        queue_id, name, stored, size, in_flight, delayed, first_us, moved_us, *counted = row
        spec = read_spec(stored, str(text_of(name)))
        counters = QueueCounters(*counted)
        if size and spec.fifo and spec.delay:
            delayed += fifo_delayed(connection, queue_id, now_us)
        oldest_us = min((each for each in (first_us, moved_us) if each is not None), default=None)
        age = None if oldest_us is None else max(0.0, (self._engine.now_us() - oldest_us) / 1_000_000)
        stats = QueueStats(size - in_flight - delayed, in_flight, delayed, age, counters.expired)
        return QueueOverview(spec=spec, stats=stats, counters=counters)


def fifo_delayed(connection: apsw.Connection, queue_id: int, now_us: int) -> int:
    """Return how many messages of a FIFO queue with a delay are not due yet."""
    return int(one(connection, _FIFO_DELAYED, (*id_range(queue_id), now_us))[0])


def is_expired(found: QueueOverview) -> bool:
    """Return whether the oldest message is older than the queue keeps messages."""
    age = found.stats.oldest_age_seconds
    return age is not None and age >= found.spec.retention
