"""The queue on the embedded engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from postroad import failpoints
from postroad.arguments import check, seconds_between, whole_number
from postroad.clock import SystemClock
from postroad.engine import Transaction, every, one
from postroad.errors import QueueNotFound, StorageFull
from postroad.queues.markers import legible, traceback_of
from postroad.queues.port import (
    AckResult,
    Decide,
    Delivery,
    Keep,
    Looked,
    MoveStep,
    OutgoingMessage,
    PeekedMessage,
    QueueStats,
    QueueTraits,
    SendResult,
)
from postroad.queues.rules import MAX_VISIBILITY, Note, QueueSpec, check_messages, check_receive
from postroad.queues.sqlite.census import fifo_delayed
from postroad.queues.sqlite.claims import Leased, Waiter
from postroad.queues.sqlite.state import Content, channel, content_of, id_range

if TYPE_CHECKING:
    from postroad.queues.sqlite.store import SQLiteQueues

T = TypeVar("T")

_LONGEST_PEEK: Final = 1_000
_LOOK_AGAIN: Final = 0.05
_TAKEN_AT_ONCE: Final = 100
_PURGED_AT_ONCE: Final = 10_000
_MOST_NOTED: Final = 100_000
_SWEEP_EVERY: Final = 1.0
_Wait: Final = seconds_between(0, MAX_VISIBILITY)
_NEXT_OF_GROUPS: Final = """
SELECT 0, (SELECT min(visible_us) FROM grp WHERE grp.queue = tally.queue) FROM tally WHERE queue = ?
"""
_NEXT: Final = """
SELECT head < next, (SELECT min(visible_us) FROM lease WHERE lease.queue = tally.queue) FROM tally WHERE queue = ?
"""
_SIZE: Final = "SELECT size, expired FROM tally WHERE queue = ?"
_WAITING: Final = "SELECT held, count(*) FROM lease WHERE queue = ? AND visible_us > ? GROUP BY held"
_FIRST: Final = "SELECT sent_us FROM message WHERE id > ? AND id < ? ORDER BY id LIMIT 1"
_OLDEST_MOVED: Final = "SELECT min(sent_us) FROM message WHERE id >> 40 = ? AND origin IS NOT NULL"


def embedded_traits(**own: Any) -> QueueTraits:
    """Return what a queue in the embedded file promises; `own` are the traits that differ from queue to queue."""
    return QueueTraits(
        exclusive=True,
        peeks_clean=True,
        tells_stale_acks=True,
        atomic_reject=True,
        keeps_release_error=True,
        counts_expired=True,
        short_waits=True,
        defers_by="undo",
        **own,
    )


class SQLiteQueue:
    """One queue in the embedded file."""

    def __init__(self, store: SQLiteQueues, queue_id: int, spec: QueueSpec) -> None:
        self._store = store
        self._engine = store.engine
        self.id = queue_id
        """The queue's number in its file, which no other queue ever gets."""
        self.name = spec.name
        self._channel = channel(queue_id)
        self._spec = spec
        self.traits = embedded_traits(
            fifo=spec.fifo,
            durable=store.engine.durable,
            auto_deletes=True,
            max_message_bytes=spec.max_message_bytes,
            visibility=spec.visibility,
            max_receives=None if spec.dead_letter is None else spec.max_receives,
        )
        self._swept_at = -_SWEEP_EVERY
        # A test's clock wakes nobody when it moves.
        is_real = isinstance(self._engine.clock, SystemClock)
        self._look_every = (spec.auto_delete_after or 3_600.0) / 3 if is_real else _LOOK_AGAIN

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        bodies = check_messages(self._spec, messages)
        if not bodies:
            return []
        contents = [content_of(message, body) for message, body in zip(messages, bodies, strict=True)]
        try:
            row_ids = self._engine.write(lambda tx: self._send(tx, contents))
        except QueueNotFound as error:
            raise self._deleted() from error
        failpoints.hit("queue.send.after_commit")
        if self._spec.fifo and self._engine.clock.monotonic() >= self._store.sweep_at:
            self._store.sweep(in_background=True)
        text = self._store.ids.text
        return [SendResult(True, text(row_id), row_id) for row_id in row_ids]

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        check_receive(max_messages, wait, visibility)
        visibility_us = None if visibility is None else int(visibility * 1_000_000)
        self._sweep()
        if wait and not self._engine.in_transaction:
            leased = self._receive_waiting(max_messages, wait, visibility_us)
        else:
            leased = self._claim(max_messages, visibility_us)
        failpoints.hit("queue.receive.after_commit")
        return self._store.claimer.deliveries(leased)

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = self._write(self._store.verbs.ack, deliveries, durable=False, removes=True)
        failpoints.hit("queue.ack.after_commit")
        return results

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        check(seconds, _Wait, "seconds")
        until_us = self._engine.monotonic_us() + int(seconds * 1_000_000)
        return self._write(self._store.verbs.extend, deliveries, until_us, durable=False)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        check(after, _Wait, "after")
        check(error, Note | None, "error")
        text = None if error is None else legible(error)
        delay = (int(after * 1_000_000), text, traceback_of(error))
        return self._write(self._store.verbs.release, deliveries, *delay, durable=False)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        check(reason, Note | None, "reason")
        check(error, Note | None, "error")
        text = None if error is None else legible(error)
        return self._write(self._store.verbs.reject, deliveries, reason, text, traceback_of(error), relieves=True)

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give the messages back without spending a receive, to be received again after `after` seconds."""
        check(after, _Wait, "after")
        return self._write(self._store.verbs.undo, deliveries, int(after * 1_000_000), durable=False)

    def watch(self, wake: Callable[[bool], None]) -> AbstractContextManager[object]:
        """Call `wake` whenever the queue changed (True) or may have changed (False)."""
        return self._engine.watch(wake, self._channel)

    def due_seconds(self) -> float | None:
        """Return the seconds until a receive may find something, or must renew the queue."""
        due_us = self._store.states.next_due_us(self.id, self._engine.news) or self._look_for_due()
        return 0.0 if due_us is not None and due_us <= self._engine.monotonic_us() else self._pause(due_us)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        oldest_us = self._engine.now_us() - int(self._spec.retention * 1_000_000)
        look = partial(self._store.mover.peek, queue_id=self.id, after=after, limit=limit, oldest_us=oldest_us)
        return self._engine.read(look)

    def stats(self) -> QueueStats:
        """Count the messages. Neither backlog nor age makes this slower; leases and delays are counted one by one."""
        self._sweep(force=True)
        return self._engine.read(self._count)

    def move(
        self, decide: Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        return self._write(self._store.mover.move, decide, cursor, limit, only)

    def look(self, *, cursor: str | None = None, limit: int = 500) -> Looked:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        return self._engine.read(partial(self._store.mover.look, queue_id=self.id, cursor=cursor, limit=limit))

    def stop(self, cursor: str | None) -> None:
        """Do nothing: a walk holds no messages here."""

    def end(self) -> str | None:
        return str(self._next_id() - 1)

    def whereabouts(self, ids: Collection[str]) -> dict[str, str]:
        return self._engine.read(partial(self._store.mover.whereabouts, ids=ids))

    def native(self) -> None:
        """Return None: the file has no moves of its own."""

    def take_out(self, keep: Keep) -> int:
        below, removed = self._next_id(), 0
        look = partial(self._store.mover.below, queue_id=self.id, below=below, limit=_TAKEN_AT_ONCE)
        while messages := self._engine.read(look):
            keep(messages)
            failpoints.hit("queue.purge.mid")
            rows = [message.sequence for message in messages]
            removed += self._write(self._store.mover.remove, rows, removes=True)
        return removed

    def purge(self) -> int:
        below = self._next_id()
        removed, limit = 0, _PURGED_AT_ONCE
        while True:
            try:
                # The trail remembers as many as fit; a full disk has room for none.
                noted = removed < _MOST_NOTED and limit == _PURGED_AT_ONCE
                step = self._write(self._store.mover.purge_step, below, limit, noted, removes=True)
            except StorageFull:
                if limit == 1:
                    raise
                # A full disk has room for a short log only.
                limit = max(1, limit // 10)
                continue
            if not step:
                return removed
            removed += step

    def _next_id(self) -> int:
        return self._engine.write(lambda tx: self._store.states.get(tx, self.id).next, durable=False)

    def _write(self, verb: Callable[..., T], *arguments: Any, **options: bool) -> T:
        """Run `verb(tx, state, *arguments)` in the engine's next transaction, with the options of `Engine.write`."""

        def work(tx: Transaction) -> T:
            return verb(tx, self._store.states.get(tx, self.id), *arguments)

        try:
            return self._engine.write(work, **options)
        except QueueNotFound as error:
            raise self._deleted() from error

    def _deleted(self) -> QueueNotFound:
        return QueueNotFound(f'queue "{self.name}" was deleted')

    def _send(self, tx: Transaction, contents: Sequence[Content]) -> Sequence[int]:
        state = self._store.states.for_sending(tx, self.id)
        row_ids = self._store.verbs.send(tx, state, contents)
        self._store.claimer.deliver(tx, state)
        failpoints.hit("queue.send.before_commit")
        return row_ids

    def _claim(self, limit: int, visibility_us: int | None) -> list[Leased]:
        return self._write(self._store.claimer.claim, limit, visibility_us, durable=False)

    def _receive_waiting(self, limit: int, wait: float, visibility_us: int | None) -> list[Leased]:
        """Claim, or wait until a send of this process serves this receiver or a wake-up makes it claim again."""
        deadline = time.monotonic() + wait
        # A claim renews a queue that is deleted when nobody receives.
        renews = self._spec.auto_delete_after is not None
        # Nobody has to wake a receiver that finds something, so it does not listen yet.
        if (renews or self._store.states.probably_holds_more(self.id)) and (found := self._claim(limit, visibility_us)):
            return found
        with self._engine.listen(self._channel) as listener:
            waiter, claim_first = Waiter(listener, limit, visibility_us), False
            try:
                while True:
                    found = self._claim(limit, visibility_us) if claim_first else self._wait_for(waiter, deadline)
                    if found or time.monotonic() >= deadline:
                        return found
                    claim_first = renews and not claim_first
            except BaseException:
                # Undo what was leased for a receiver that was interrupted while it waited.
                if found := self._store.claimer.parking.withdraw(self.id, waiter):
                    self.undo(self._store.claimer.deliveries(found))
                raise

    def _wait_for(self, waiter: Waiter, deadline: float) -> list[Leased]:
        """Park first and read the file then, so that nothing sent in between is missed."""
        parking = self._store.claimer.parking
        parking.park(self.id, waiter)
        due_us = self._store.states.next_due_us(self.id, self._engine.news) or self._look_for_due()
        is_due = due_us is not None and due_us <= self._engine.monotonic_us()
        if not is_due:
            waiter.listener.wait(min(deadline - time.monotonic(), self._pause(due_us)))
        leased = parking.withdraw(self.id, waiter)
        return leased or (self._claim(waiter.limit, waiter.visibility_us) if is_due else [])

    def _look_for_due(self) -> int | None:
        """Return when, on the monotonic clock, something may be received; 0 for now, None for not before a send."""
        statement = _NEXT_OF_GROUPS if self._spec.fifo else _NEXT
        row = self._engine.read(lambda connection: one(connection, statement, (self.id,)))
        if row is None:
            raise self._deleted()
        has_new, returned = row
        return 0 if has_new else returned

    def _pause(self, due_us: int | None) -> float:
        if due_us is None:
            return self._look_every
        return min(self._look_every, max(0.001, (due_us - self._engine.monotonic_us()) / 1_000_000))

    def _sweep(self, *, force: bool = False) -> None:
        """Remove expired messages, at most once a second."""
        now = self._engine.clock.monotonic()
        if not force and now - self._swept_at < _SWEEP_EVERY:
            return
        self._swept_at = now
        if now >= self._store.sweep_at:
            self._store.sweep()
        oldest = self._engine.read(self._oldest_us)
        is_over = oldest is not None and oldest <= self._engine.now_us() - self._spec.retention * 1_000_000
        if not is_over or self._engine.read_only:
            return
        while self._write(self._store.expire_oldest, durable=False, removes=True):
            continue

    def _oldest_us(self, connection: Any) -> int | None:
        """Return when the oldest message was sent. Only messages that were moved here are not in that order."""
        first = one(connection, _FIRST, id_range(self.id))
        if first is None:
            return None
        moved = one(connection, _OLDEST_MOVED, (self.id,))[0]
        return int(first[0]) if moved is None else min(int(first[0]), int(moved))

    def _count(self, connection: Any) -> QueueStats:
        monotonic_us = self._engine.monotonic_us()
        numbers = one(connection, _SIZE, (self.id,))
        if numbers is None:
            raise self._deleted()
        size, expired = numbers
        waiting = dict(every(connection, _WAITING, (self.id, monotonic_us)))
        in_flight, delayed = waiting.get(1, 0), waiting.get(0, 0)
        if self._spec.fifo and self._spec.delay:
            delayed += fifo_delayed(connection, self.id, monotonic_us)
        oldest = self._oldest_us(connection)
        age = None if oldest is None else max(0.0, (self._engine.now_us() - oldest) / 1_000_000)
        return QueueStats(size - in_flight - delayed, in_flight, delayed, age, expired)
