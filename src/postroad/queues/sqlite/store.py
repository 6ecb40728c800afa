"""All queues of one embedded file."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from postroad.engine import Engine, Transaction, every, one, text_of
from postroad.errors import PostroadError, QueueNotFound
from postroad.queues import rules
from postroad.queues.port import QueueCounters, QueueOverview
from postroad.queues.rules import QueueSpec
from postroad.queues.sqlite.census import Census, is_expired
from postroad.queues.sqlite.claims import Claimer
from postroad.queues.sqlite.history import History
from postroad.queues.sqlite.moves import Mover
from postroad.queues.sqlite.queue import SQLiteQueue
from postroad.queues.sqlite.state import (
    COLUMNS,
    JOINED,
    MessageIds,
    QueueState,
    Row,
    States,
    channel,
    id_range,
    read_spec,
    regroup,
    write_spec,
)
from postroad.queues.sqlite.tables import SCHEMA, after_reboot
from postroad.queues.sqlite.verbs import Verbs

STEP: Final = 500
_FIRST: Final = f"SELECT {COLUMNS} {JOINED} WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?"
_MOVED: Final = f"""
SELECT {COLUMNS} {JOINED} WHERE m.id >> 40 = ? AND m.origin IS NOT NULL AND m.sent_us <= ? ORDER BY m.sent_us LIMIT ?
"""
_ABANDONED: Final = "SELECT queue, size FROM tally WHERE lives_us IS NOT NULL AND seen_us <= ? - lives_us"
_COUNT: Final = "UPDATE abandoned SET queues = queues + 1, messages = messages + ?"
_REMOVE: Final = (
    "DELETE FROM lease WHERE queue = ?1",
    "DELETE FROM message WHERE id > ?1 << 40 AND id < (?1 + 1) << 40",
    "DELETE FROM grp WHERE queue = ?1",
    "DELETE FROM dedup WHERE scope = ?1",
    """
    UPDATE deleted SET sent = deleted.sent + tally.sent, received = deleted.received + tally.received,
        acked = deleted.acked + tally.acked, retried = deleted.retried + tally.retried,
        dead = deleted.dead + tally.dead, redriven = deleted.redriven + tally.redriven,
        expired = deleted.expired + tally.expired
    FROM tally WHERE tally.queue = ?1
    """,
    "DELETE FROM tally WHERE queue = ?1",
    "DELETE FROM queue WHERE id = ?1",
)
_OLD_DEDUP: Final = "SELECT 1 FROM (SELECT until_us FROM dedup ORDER BY n LIMIT 1) WHERE until_us <= ?"
_FORGET_DEDUP: Final = f"""
DELETE FROM dedup WHERE n IN (SELECT n FROM dedup ORDER BY n LIMIT {STEP}) AND until_us <= ? RETURNING n
"""  # noqa: S608 - STEP is a constant
_LEFT_TRACEBACK: Final = """
SELECT n FROM traceback WHERE NOT EXISTS (SELECT 1 FROM message WHERE id = traceback.message)
AND NOT EXISTS (SELECT 1 FROM message WHERE origin = traceback.message)
"""
_FORGET_TRACEBACKS: Final = f"DELETE FROM traceback WHERE n IN ({_LEFT_TRACEBACK} LIMIT {STEP})"  # noqa: S608
TRAIL_KEEP: Final = 100_000
_FIND: Final = "SELECT id, CAST(spec AS BLOB) FROM queue WHERE name = ?"
_ADD: Final = "INSERT INTO queue (name, spec) VALUES (?, ?) RETURNING id"
_ADD_TALLY: Final = "INSERT INTO tally (queue, next, head, seen_us, lives_us) VALUES (?, ?, ?, ?, ?)"
_UPDATE: Final = "UPDATE queue SET spec = ? WHERE id = ?"
_UPDATE_LIFE: Final = "UPDATE tally SET lives_us = ? WHERE queue = ?"
_NAMES: Final = "SELECT CAST(name AS BLOB) FROM queue ORDER BY name"
_SOME_NAMES: Final = """
SELECT CAST(name AS BLOB) FROM queue WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?
"""
_SOURCES: Final = """
SELECT CAST(name AS BLOB) FROM queue
WHERE CASE WHEN json_valid(spec) THEN json_extract(spec, '$.dead_letter') END = ? ORDER BY name
"""
_SWEEP_SECONDS: Final = 60.0
_OUTLIVED: Final = "SELECT queues, messages FROM abandoned"


class SQLiteQueues:
    """Creates, finds and removes the queues of one file."""

    def __init__(self, engine: Engine, *, trail_keep: int = TRAIL_KEEP) -> None:
        self.engine = engine
        self.ids = MessageIds(engine.salt)
        self.states = States(trail_keep)
        engine.keep(self.states)
        self.sweep_at = engine.clock.monotonic() + _SWEEP_SECONDS
        """When, on the monotonic clock, `sweep` is due."""
        self.verbs = Verbs(engine, self.ids, self.states)
        self.claimer = Claimer(engine, self.ids, self.states, self.verbs)
        self.mover = Mover(engine, self.ids, self.states, self.verbs)
        self._census = Census(engine)
        history = History(engine, self.ids)
        self.settled, self.located, self.traceback = history.settled, history.located, history.traceback
        self.messages_of, self.caused_by = history.messages_of, history.caused_by
        engine.prepare(
            SCHEMA,
            after_reboot=lambda tx: after_reboot(tx, monotonic_us=engine.monotonic_us(), now_us=engine.now_us()),
        )

    def create_queue(self, spec: QueueSpec) -> SQLiteQueue:
        """Create the queue, or return it if it exists with the same settings."""
        rules.check_spec(spec)

        def work(tx: Transaction) -> int:
            self._remove_abandoned(tx)
            found = one(tx.connection, _FIND, (spec.name,))
            if found is None:
                return self._add(tx, spec)
            if differences := read_spec(found[1], spec.name).differences(spec):
                raise rules.settings_differ(spec.name, differences)
            return int(found[0])

        # A program that starts on a full disk asks for the queues that it created before.
        return SQLiteQueue(self, self.engine.write(work, relieves=True), spec)

    def update_queue(self, spec: QueueSpec) -> SQLiteQueue:
        """Give the queue other settings."""
        rules.check_spec(spec)

        def work(tx: Transaction) -> int:
            found = one(tx.connection, _FIND, (spec.name,))
            if found is None:
                raise rules.queue_missing(spec.name)
            queue_id = int(found[0])
            self._check_dead_letter(tx, spec)
            # Written first, so that damaged settings can be replaced.
            tx.connection.execute(_UPDATE, (write_spec(spec), queue_id))
            state = self.states.get(tx, queue_id)
            state.spec, state.seen_us, state.returns_us = spec, self.engine.monotonic_us(), 0
            tx.connection.execute(_UPDATE_LIFE, (_lives_us(spec), queue_id))
            tx.touch(channel(queue_id))
            return queue_id

        return SQLiteQueue(self, self.engine.write(work), spec)

    def delete_queue(self, name: str) -> None:
        """Remove the queue; a crash in the middle leaves a queue that holds less."""
        self.queue(name).purge()
        self.engine.write(lambda tx: self._remove_queue(tx, self._find(tx.connection, name)[0]), removes=True)

    def queue(self, name: str) -> SQLiteQueue:
        """Return the queue of this name."""
        rules.check_name(name)
        self._sweep_abandoned()
        queue_id, spec = self.engine.read(lambda connection: self._find(connection, name))
        return SQLiteQueue(self, queue_id, spec)

    def queue_spec(self, name: str) -> QueueSpec:
        """Return the settings of the queue."""
        rules.check_name(name)
        return self.engine.read(lambda connection: self._find(connection, name))[1]

    def queues(self) -> list[str]:
        """Return all names, sorted."""
        self._sweep_abandoned()
        return self.engine.read(lambda connection: [str(text_of(name)) for (name,) in every(connection, _NAMES)])

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Return these queues, by default all, with their settings and contents."""
        self._sweep_abandoned()
        return self._without_expired(self._census.take(None if names is None else list(names)))

    def census(self) -> tuple[list[QueueOverview], QueueCounters]:
        """Return all queues as `overviews` does, and what had happened on those that were deleted since."""
        found, deleted = self._census.take_with_deleted()
        return self._without_expired(found), deleted

    def _without_expired(self, found: list[QueueOverview]) -> list[QueueOverview]:
        """Remove the expired messages of the queues that hold some, and count these queues again."""
        over = [each.spec.name for each in found if is_expired(each)]
        if not over or self.engine.read_only:
            return found
        for name in over:
            with suppress(QueueNotFound):
                self.queue(name).stats()
        again = {each.spec.name: each for each in self._census.take(over)}
        return [again.get(each.spec.name, each) for each in found]

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have this one as their dead-letter queue, sorted."""
        rules.check_name(dead_letters)
        self._sweep_abandoned()
        return self.engine.read(lambda each: [str(text_of(name)) for (name,) in every(each, _SOURCES, (dead_letters,))])

    def names(self, *, prefix: str, after: str, limit: int) -> list[str]:
        """Return up to `limit` names that begin with `prefix` and come behind `after`, sorted."""
        self._sweep_abandoned()
        given = (after, prefix, f"{prefix}\U0010ffff", limit)
        return self.engine.read(lambda each: [str(text_of(name)) for (name,) in every(each, _SOME_NAMES, given)])

    @property
    def auto_deleted(self) -> int:
        """Return how many queues were removed because their owner was gone."""
        return int(self.engine.read(lambda connection: one(connection, _OUTLIVED))[0])

    def _add(self, tx: Transaction, spec: QueueSpec) -> int:
        self._check_dead_letter(tx, spec)
        queue_id: int = one(tx.connection, _ADD, (spec.name, write_spec(spec)))[0]
        first = id_range(queue_id)[0] + 1
        seen_us = self.engine.monotonic_us()
        tx.connection.execute(_ADD_TALLY, (queue_id, first, first, seen_us, _lives_us(spec)))
        return queue_id

    def _check_dead_letter(self, tx: Transaction, spec: QueueSpec) -> None:
        if spec.dead_letter is None:
            return
        found = one(tx.connection, _FIND, (spec.dead_letter,))
        if found is None:
            raise rules.dead_letter_missing(spec.dead_letter)
        rules.check_source_allowed(read_spec(found[1], spec.dead_letter), spec.name)

    def expire_oldest(self, tx: Transaction, state: QueueState) -> int:
        """Remove some expired messages, from the old end and among those moved here; return how many."""
        now_us, monotonic_us = self.engine.now_us(), self.engine.monotonic_us()
        oldest_us = now_us - int(state.spec.retention * 1_000_000)
        rows = {
            **{row[0]: row for row in every(tx.connection, _FIRST, (*id_range(state.id), STEP)) if row[1] <= oldest_us},
            **{row[0]: row for row in every(tx.connection, _MOVED, (state.id, oldest_us, STEP))},
        }
        for columns in rows.values():
            self.verbs.expire(tx, state, Row(*columns), now_us=now_us)
        regroup(tx, state.id, {columns[2] for columns in rows.values()}, monotonic_us)
        return len(rows)

    def sweep(self, *, in_background: bool = False) -> None:
        """Remove abandoned queues, old deduplication ids and the tracebacks of settled messages.

        This is done in another thread for callers that must not wait.
        """
        self.sweep_at = self.engine.clock.monotonic() + _SWEEP_SECONDS
        if self.engine.read_only:
            return
        # A failure needs no report: what has expired is never given out, and the next sweep tries again.
        if in_background:
            with suppress(RuntimeError):
                threading.Thread(target=self.sweep, name="postroad-sweep", daemon=True).start()
            return
        with suppress(PostroadError):
            self._sweep_abandoned()
            while self._finds(_OLD_DEDUP) and self.engine.write(self._forget_dedup_ids, durable=False, removes=True):
                continue
            while self._finds(_LEFT_TRACEBACK, ()):
                self.engine.write(lambda tx: tx.connection.execute(_FORGET_TRACEBACKS), durable=False, removes=True)

    def _sweep_abandoned(self) -> None:
        """Remove queues whose owner is gone. If there are none, the file is only read."""
        if not self.engine.read_only and self._finds(_ABANDONED):
            self.engine.write(self._remove_abandoned, durable=False)

    def _finds(self, statement: str, bindings: tuple[int, ...] | None = None) -> bool:
        given = (self.engine.monotonic_us(),) if bindings is None else bindings
        return self.engine.read(lambda each: one(each, statement, given)) is not None

    def _forget_dedup_ids(self, tx: Transaction) -> bool:
        """Remove some deduplication ids older than five minutes; return whether there may be more."""
        return len(every(tx.connection, _FORGET_DEDUP, (self.engine.monotonic_us(),))) == STEP

    def _remove_abandoned(self, tx: Transaction) -> None:
        # A receive of this transaction may have renewed one in memory only.
        self.states.store(tx)
        for queue_id, size in every(tx.connection, _ABANDONED, (self.engine.monotonic_us(),)):
            self._remove_queue(tx, queue_id)
            tx.connection.execute(_COUNT, (size,))

    def _remove_queue(self, tx: Transaction, queue_id: int) -> None:
        self.states.forget(queue_id)
        tx.touch(channel(queue_id))
        for statement in _REMOVE:
            tx.connection.execute(statement, (queue_id,))

    def _find(self, connection: Any, name: str) -> tuple[int, QueueSpec]:
        found = one(connection, _FIND, (name,))
        if found is None:
            raise rules.queue_missing(name)
        return int(found[0]), read_spec(found[1], name)


def _lives_us(spec: QueueSpec) -> int | None:
    return None if spec.auto_delete_after is None else int(spec.auto_delete_after * 1_000_000)
