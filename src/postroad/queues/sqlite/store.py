"""All queues of one embedded file."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from postroad.engine import Engine, Transaction, every, one, text_of
from postroad.errors import PostroadError, QueueNotFound
from postroad.queues.port import QueueOverview, overviews_one_by_one, sources_one_by_one
from postroad.queues.spec import (
    QueueSpec,
    check_name,
    check_source_allowed,
    check_spec,
    dead_letter_missing,
    queue_missing,
    settings_differ,
)
from postroad.queues.sqlite.claims import Claimer, Leased, Parking, Waiter, id_range
from postroad.queues.sqlite.moves import Mover
from postroad.queues.sqlite.queue import SQLiteQueue
from postroad.queues.sqlite.rows import COLUMNS, ERROR, MessageIds, Row, Settled, channel, find_settled, regroup
from postroad.queues.sqlite.sends import Sender
from postroad.queues.sqlite.settlement import Settler, Undertaker
from postroad.queues.sqlite.state import QueueState, States, read_spec, write_spec
from postroad.queues.sqlite.tables import ID_BITS, SCHEMA, after_reboot

STEP: Final = 500
_FIRST: Final = f"""
SELECT {COLUMNS}, coalesce(lease.receives, 0), lease.first_us, {ERROR}
FROM message AS m LEFT JOIN lease ON lease.id = m.id WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?
"""  # noqa: S608 - COLUMNS is a constant
_MOVED: Final = f"""
SELECT {COLUMNS}, coalesce(lease.receives, 0), lease.first_us, {ERROR}
FROM message AS m LEFT JOIN lease ON lease.id = m.id
WHERE m.id >> 40 = ? AND m.origin IS NOT NULL AND m.sent_us <= ? ORDER BY m.sent_us LIMIT ?
"""  # noqa: S608 - COLUMNS is a constant
_ABANDONED: Final = "SELECT queue, size FROM tally WHERE lives_us IS NOT NULL AND seen_us <= ? - lives_us"
_COUNT: Final = "UPDATE abandoned SET queues = queues + 1, messages = messages + ?"
_REMOVE: Final = (
    "DELETE FROM lease WHERE queue = ?1",
    "DELETE FROM message WHERE id > ?1 << 40 AND id < (?1 + 1) << 40",
    "DELETE FROM grp WHERE queue = ?1",
    "DELETE FROM dedup WHERE scope = ?1",
    "DELETE FROM tally WHERE queue = ?1",
    "DELETE FROM queue WHERE id = ?1",
)


_OLD_DEDUP: Final = "SELECT 1 FROM (SELECT until_us FROM dedup ORDER BY n LIMIT 1) WHERE until_us <= ?"
_FORGET_DEDUP: Final = f"""
DELETE FROM dedup WHERE n IN (SELECT n FROM dedup ORDER BY n LIMIT {STEP}) AND until_us <= ? RETURNING n
"""  # noqa: S608 - STEP is a constant


class Sweeper:
    """Takes away what nobody will come for."""

    def __init__(self, engine: Engine, states: States, undertaker: Undertaker) -> None:
        self._engine = engine
        self._states = states
        self._undertaker = undertaker

    def expire_oldest(self, tx: Transaction, state: QueueState) -> int:
        """Remove up to a step of expired messages, from the old end and among those moved here; how many."""
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        oldest_us = now_us - int(state.spec.retention * 1_000_000)
        rows = {
            **{row[0]: row for row in every(tx.connection, _FIRST, (*id_range(state.id), STEP)) if row[1] <= oldest_us},
            **{row[0]: row for row in every(tx.connection, _MOVED, (state.id, oldest_us, STEP))},
        }
        for columns in rows.values():
            self._undertaker.expire(tx, state, Row(*columns), now_us=now_us)
        for group in {columns[2] for columns in rows.values()} - {None}:
            regroup(tx, state, group, monotonic_us)
        return len(rows)

    def sees_abandoned(self, connection: Any) -> bool:
        """Whether there are queues that `remove_abandoned` would remove."""
        return one(connection, _ABANDONED, (self._engine.monotonic_us(),)) is not None

    def sees_old_dedup_ids(self, connection: Any) -> bool:
        """Whether there are deduplication ids whose five minutes are over."""
        return one(connection, _OLD_DEDUP, (self._engine.monotonic_us(),)) is not None

    def forget_dedup_ids(self, tx: Transaction) -> bool:
        """Forget up to a step of deduplication ids whose five minutes are over; whether there may be more."""
        return len(every(tx.connection, _FORGET_DEDUP, (self._engine.monotonic_us(),))) == STEP

    def remove_abandoned(self, tx: Transaction) -> None:
        """Remove queues whose owner renewed nothing for as long as they live."""
        # A receive of this transaction may have renewed one in memory only.
        self._states.store(tx)
        for queue_id, size in every(tx.connection, _ABANDONED, (self._engine.monotonic_us(),)):
            self.remove_queue(tx, queue_id)
            tx.connection.execute(_COUNT, (size,))

    def remove_queue(self, tx: Transaction, queue_id: int) -> None:
        """Remove a queue with all it holds."""
        self._states.forget(queue_id)
        tx.touch(channel(queue_id))
        for statement in _REMOVE:
            tx.connection.execute(statement, (queue_id,))


TRAIL_KEEP: Final = 100_000
_FIND: Final = "SELECT id, CAST(spec AS BLOB) FROM queue WHERE name = ?"
_ADD: Final = "INSERT INTO queue (name, spec) VALUES (?, ?) RETURNING id"
_ADD_TALLY: Final = "INSERT INTO tally (queue, next, head, seen_us, lives_us) VALUES (?, ?, ?, ?, ?)"
_UPDATE: Final = "UPDATE queue SET spec = ? WHERE id = ?"
_UPDATE_LIFE: Final = "UPDATE tally SET lives_us = ? WHERE queue = ?"
_NAMES: Final = "SELECT CAST(name AS BLOB) FROM queue ORDER BY name"
_COUNTERS: Final = """
SELECT CAST(name AS BLOB), sent, received, acked, retried, dead, redriven, expired
FROM tally JOIN queue ON queue.id = tally.queue
"""
_SWEEP_SECONDS: Final = 60.0
_OUTLIVED: Final = "SELECT queues, messages FROM abandoned"
_COUNTED: Final = ("sent", "received", "acked", "retried", "dead", "redriven", "expired")


class SQLiteQueues:
    """Makes, finds and removes the queues of one file."""

    def __init__(self, engine: Engine, *, trail_keep: int = TRAIL_KEEP) -> None:
        self.engine = engine
        self.ids = MessageIds(engine.salt)
        self.states = States(trail_keep)
        engine.keep(self.states)
        self.parking = Parking()
        self._sweep_at = engine.clock.monotonic() + _SWEEP_SECONDS
        self.sender = Sender(engine, self.ids)
        self._undertaker = Undertaker(self.states, self.sender)
        self.claimer = Claimer(engine, self.ids, self._undertaker)
        self.settler = Settler(engine, self.states, self._undertaker)
        self.sweeper = Sweeper(engine, self.states, self._undertaker)
        self.mover = Mover(engine, self.ids, self.states, self.sender, self._undertaker)
        engine.prepare(SCHEMA, after_reboot=self._after_reboot)

    def create_queue(self, spec: QueueSpec) -> SQLiteQueue:
        """Make the queue, or return the one that is the same."""
        check_spec(spec)

        def work(tx: Transaction) -> int:
            self.sweeper.remove_abandoned(tx)
            found = one(tx.connection, _FIND, (spec.name,))
            if found is None:
                return self._add(tx, spec)
            if differences := read_spec(found[1], spec.name).differences(spec):
                raise settings_differ(spec.name, differences)
            return int(found[0])

        # A program that starts on a full disk makes the queues that it made before.
        return SQLiteQueue(self, self.engine.write(work, relieves=True), spec)

    def update_queue(self, spec: QueueSpec) -> SQLiteQueue:
        """Give the queue other settings."""
        check_spec(spec)

        def work(tx: Transaction) -> int:
            found = one(tx.connection, _FIND, (spec.name,))
            if found is None:
                raise queue_missing(spec.name)
            queue_id = int(found[0])
            self._check_dead_letter(tx, spec)
            # Written first: settings that are damaged can be given again.
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
        self.engine.write(lambda tx: self.sweeper.remove_queue(tx, self._find(tx.connection, name)[0]), removes=True)

    def queue(self, name: str) -> SQLiteQueue:
        """The queue of this name."""
        check_name(name)
        self._sweep()
        queue_id, spec = self.engine.read(lambda connection: self._find(connection, name))
        return SQLiteQueue(self, queue_id, spec)

    def queue_spec(self, name: str) -> QueueSpec:
        """The settings of the queue."""
        check_name(name)
        found = self.engine.read(lambda connection: one(connection, _FIND, (name,)))
        if found is None:
            raise queue_missing(name)
        return read_spec(found[1], name)

    def queues(self) -> list[str]:
        """All names, sorted."""
        self._sweep()
        return self.engine.read(lambda connection: [str(text_of(name)) for (name,) in every(connection, _NAMES)])

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Look at these queues, by default at all."""
        return overviews_one_by_one(self, names)

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have this one as their dead-letter queue, sorted."""
        return sources_one_by_one(self, dead_letters)

    def counters(self) -> dict[str, dict[str, int]]:
        """What happened on each queue since it was made, in all processes."""
        rows = self.engine.read(lambda connection: every(connection, _COUNTERS))
        return {str(text_of(name)): dict(zip(_COUNTED, numbers, strict=True)) for name, *numbers in rows}

    def settled(self, message_id: str) -> list[Settled]:
        """What became of a message, as far back as the trail goes."""
        first_id = self.ids.row_id(message_id)
        return [] if first_id is None else self.engine.read(lambda connection: find_settled(connection, first_id))

    @property
    def auto_deleted(self) -> int:
        """How many queues were removed because their owner was gone."""
        return int(self.engine.read(lambda connection: one(connection, _OUTLIVED))[0])

    def deliver(self, tx: Transaction, state: QueueState) -> None:
        """Before the commit, lease what was sent to receivers that wait in this process, and ring for others."""
        if not state.unserved:
            state.unserved = True
            tx.before_commit(partial(self._serve, tx, state.id))

    def _serve(self, tx: Transaction, queue_id: int) -> None:
        try:
            state = self.states.for_sending(tx, queue_id)
        except QueueNotFound:
            # Deleted in the same transaction.
            return
        state.unserved = False

        def claim(waiter: Waiter) -> list[Leased]:
            return self.claimer.claim(tx, state, limit=waiter.limit, visibility_us=waiter.visibility_us)

        self.parking.serve(tx, state.id, claim)
        if state.spec.fifo or state.head < state.next:
            tx.touch(channel(state.id))

    def _add(self, tx: Transaction, spec: QueueSpec) -> int:
        self._check_dead_letter(tx, spec)
        queue_id: int = one(tx.connection, _ADD, (spec.name, write_spec(spec)))[0]
        first = (queue_id << ID_BITS) + 1
        seen_us = self.engine.monotonic_us()
        tx.connection.execute(_ADD_TALLY, (queue_id, first, first, seen_us, _lives_us(spec)))
        return queue_id

    def _check_dead_letter(self, tx: Transaction, spec: QueueSpec) -> None:
        if spec.dead_letter is None:
            return
        found = one(tx.connection, _FIND, (spec.dead_letter,))
        if found is None:
            raise dead_letter_missing(spec.dead_letter)
        check_source_allowed(read_spec(found[1], spec.dead_letter), spec.name)

    def sweep_at_times(self, *, here: bool) -> None:
        """Remove what is over at most once a minute: on this thread, or on another one for those who must not wait."""
        now = self.engine.clock.monotonic()
        if now < self._sweep_at or self.engine.read_only:
            return
        self._sweep_at = now + _SWEEP_SECONDS
        if here:
            self._sweep_quietly()
        else:
            threading.Thread(target=self._sweep_quietly, name="postroad-sweep", daemon=True).start()

    def _sweep_quietly(self) -> None:
        # Whoever is interested hears of it: nothing that is over is ever given out.
        with suppress(PostroadError):
            self._sweep()
            while self.engine.read(self.sweeper.sees_old_dedup_ids):
                if not self.engine.write(self.sweeper.forget_dedup_ids, durable=False, removes=True):
                    break

    def _sweep(self) -> None:
        """Remove queues whose owner is gone. Where there are none, the file is only read."""
        if not self.engine.read_only and self.engine.read(self.sweeper.sees_abandoned):
            self.engine.write(self.sweeper.remove_abandoned, durable=False)

    def _find(self, connection: Any, name: str) -> tuple[int, QueueSpec]:
        found = one(connection, _FIND, (name,))
        if found is None:
            raise queue_missing(name)
        return int(found[0]), read_spec(found[1], name)

    def _after_reboot(self, tx: Transaction) -> None:
        after_reboot(tx, monotonic_us=self.engine.monotonic_us(), now_us=self.engine.now_us())


def _lives_us(spec: QueueSpec) -> int | None:
    return None if spec.auto_delete_after is None else int(spec.auto_delete_after * 1_000_000)
