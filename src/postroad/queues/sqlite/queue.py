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
from postroad.engine import Transaction
from postroad.errors import QueueNotFound, StorageFull
from postroad.queues.markers import legible
from postroad.queues.moves import Decide, Keep, Looked, MoveStep
from postroad.queues.port import (
    AckResult,
    Delivery,
    OutgoingMessage,
    PeekedMessage,
    QueueStats,
    QueueTraits,
    SendResult,
)
from postroad.queues.rules import Note, check_messages, check_receive
from postroad.queues.spec import MAX_VISIBILITY, QueueSpec
from postroad.queues.sqlite import looking
from postroad.queues.sqlite.claims import Leased, Waiter
from postroad.queues.sqlite.rows import channel
from postroad.queues.sqlite.state import QueueState

if TYPE_CHECKING:
    from postroad.queues.sqlite.store import SQLiteQueues

T = TypeVar("T")

_LONGEST_PEEK: Final = 1_000
_LOOK_AGAIN: Final = 0.05
_TAKEN_AT_ONCE: Final = 100
_PURGED_AT_ONCE: Final = 10_000
_SWEEP_EVERY: Final = 1.0


class SQLiteQueue:
    """One queue in the embedded file."""

    def __init__(self, store: SQLiteQueues, queue_id: int, spec: QueueSpec) -> None:
        self._store = store
        self._engine = store.engine
        self._id = queue_id
        self._channel = channel(queue_id)
        self._spec = spec
        self._traits = _traits(spec, durable=store.engine.durable)
        self._swept_at = -_SWEEP_EVERY
        # A clock that only moves when a test moves it rings no bell.
        self._look_every = (spec.auto_delete_after or 3_600.0) / 3
        if not isinstance(self._engine.clock, SystemClock):
            self._look_every = _LOOK_AGAIN

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def id(self) -> int:
        """The queue's number in its file, which is never given again."""
        return self._id

    @property
    def traits(self) -> QueueTraits:
        return self._traits

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        bodies = check_messages(self._spec, messages)
        if not bodies:
            return []
        try:
            results = self._engine.write(lambda tx: self._send(tx, messages, bodies))
        except QueueNotFound as error:
            raise self._deleted() from error
        failpoints.hit("queue.send.after_commit")
        if self._spec.fifo:
            self._store.sweep_at_times(here=False)
        return results

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        check_receive(max_messages, wait, visibility)
        visibility_us = None if visibility is None else int(visibility * 1_000_000)
        self._sweep()
        if wait and not self._engine.in_transaction:
            leased = self._receive_waiting(max_messages, wait, visibility_us)
        else:
            leased = self._write(self._claim, max_messages, visibility_us, durable=False)
        failpoints.hit("queue.receive.after_commit")
        return self._store.claimer.deliveries(leased)

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = self._write(self._store.settler.ack, deliveries, durable=False, removes=True)
        failpoints.hit("queue.ack.after_commit")
        return results

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        check(seconds, seconds_between(0, MAX_VISIBILITY), "seconds")
        until_us = self._engine.monotonic_us() + int(seconds * 1_000_000)
        return self._write(self._store.settler.extend, deliveries, until_us, durable=False)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        check(after, seconds_between(0, MAX_VISIBILITY), "after")
        check(error, Note | None, "error")
        text = None if error is None else legible(error)
        return self._write(self._store.settler.release, deliveries, int(after * 1_000_000), text, durable=False)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        check(reason, Note | None, "reason")
        check(error, Note | None, "error")
        return self._write(self._store.settler.reject, deliveries, reason, error, relieves=True)

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give the messages back without spending a receive, to be received again after `after` seconds."""
        check(after, seconds_between(0, MAX_VISIBILITY), "after")
        return self._write(self._store.settler.undo, deliveries, int(after * 1_000_000), durable=False)

    def watch(self, rung: Callable[[bool], None]) -> AbstractContextManager[object]:
        """Call `rung` whenever the queue changed (True) or may have (False)."""
        return self._engine.watch(rung, self._channel)

    def due_seconds(self) -> float | None:
        """How long until a receive may find something, or must renew the queue."""
        due_us = self._store.states.next_due_us(self._id, self._engine.news) or self._look_for_due()
        return 0.0 if due_us is not None and due_us <= self._engine.monotonic_us() else self._pause(due_us)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        oldest_us = self._engine.now_us() - int(self._spec.retention * 1_000_000)

        def look(connection: Any) -> list[PeekedMessage]:
            position = looking.find_position(connection, self._store.ids, self._id, after)
            return looking.peek(
                connection,
                self._store.ids,
                self._id,
                position=position,
                limit=limit,
                oldest_us=oldest_us,
                now=self._engine.monotonic_us(),
            )

        return self._engine.read(look)

    def stats(self) -> QueueStats:
        self._sweep(force=True)
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        return self._engine.read(
            lambda connection: looking.stats(connection, self._id, self._spec, monotonic_us=monotonic_us, now_us=now_us)
        )

    def move(
        self, decide: Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        return self._write(self._store.mover.move, decide, cursor, limit, only)

    def look(self, *, cursor: str | None = None, limit: int = 500) -> Looked:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        now, ids = self._engine.monotonic_us(), self._store.ids
        return self._engine.read(partial(looking.walk, ids=ids, queue_id=self._id, cursor=cursor, limit=limit, now=now))

    def stop(self, cursor: str | None) -> None:
        """A walk holds nothing here."""

    def end(self) -> str | None:
        return str(self._next_id() - 1)

    def whereabouts(self, ids: Collection[str]) -> dict[str, str]:
        return self._engine.read(partial(looking.whereabouts, ids=self._store.ids, wanted=ids))

    def native(self) -> None:
        """The steps of moving are all there is."""

    def take_out(self, keep: Keep) -> int:
        below, removed = self._next_id(), 0
        while messages := self._below(below):
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
                step = self._write(self._store.mover.purge_step, below, limit, removes=True)
            except StorageFull:
                if limit == 1:
                    raise
                # A full disk has room for a short log only.
                limit = max(1, limit // 10)
                continue
            if not step:
                return removed
            removed += step

    def _below(self, below: int) -> list[PeekedMessage]:
        now, ids = self._engine.monotonic_us(), self._store.ids
        look = partial(looking.held_below, ids=ids, queue_id=self._id, below=below, limit=_TAKEN_AT_ONCE, now=now)
        return self._engine.read(look)

    def _next_id(self) -> int:
        return self._engine.write(lambda tx: self._store.states.get(tx, self._id).next, durable=False)

    def _write(
        self,
        verb: Callable[..., T],
        *arguments: Any,
        durable: bool = True,
        relieves: bool | None = None,
        removes: bool = False,
    ) -> T:
        """Run `verb(tx, state, *arguments)` in the engine's next transaction."""

        def work(tx: Transaction) -> T:
            return verb(tx, self._store.states.get(tx, self._id), *arguments)

        try:
            return self._engine.write(work, durable=durable, relieves=relieves, removes=removes)
        except QueueNotFound as error:
            raise self._deleted() from error

    def _deleted(self) -> QueueNotFound:
        return QueueNotFound(f'queue "{self.name}" was deleted')

    def _send(self, tx: Transaction, messages: Sequence[OutgoingMessage], bodies: Sequence[bytes]) -> list[SendResult]:
        state = self._store.states.for_sending(tx, self._id)
        results = self._store.sender.send(tx, state, messages, bodies)
        self._store.deliver(tx, state)
        failpoints.hit("queue.send.before_commit")
        return results

    def _claim(self, tx: Transaction, state: QueueState, limit: int, visibility_us: int | None) -> list[Leased]:
        return self._store.claimer.claim(tx, state, limit=limit, visibility_us=visibility_us)

    def _receive_waiting(self, limit: int, wait: float, visibility_us: int | None) -> list[Leased]:
        """Claim, or wait until a send of this process serves this receiver, or a bell says to look again."""
        deadline = time.monotonic() + wait
        with self._engine.listen(self._channel) as ear:
            waiter = Waiter(ear, limit, visibility_us)
            # Claiming renews a queue that lives only as long as somebody receives.
            renews = self._spec.auto_delete_after is not None
            claim_first = renews or self._store.states.probably_holds_more(self._id)
            try:
                while True:
                    found = self._claim_now(waiter) if claim_first else self._wait_for(waiter, deadline)
                    if found or time.monotonic() >= deadline:
                        return found
                    claim_first = renews and not claim_first
            except BaseException:
                self._give_back(waiter)
                raise

    def _claim_now(self, waiter: Waiter) -> list[Leased]:
        return self._write(self._claim, waiter.limit, waiter.visibility_us, durable=False)

    def _wait_for(self, waiter: Waiter, deadline: float) -> list[Leased]:
        """Park first and look then, so that nothing sent in between is missed."""
        self._store.parking.park(self._id, waiter)
        due_us = self._store.states.next_due_us(self._id, self._engine.news) or self._look_for_due()
        is_due = due_us is not None and due_us <= self._engine.monotonic_us()
        if not is_due:
            waiter.listener.wait(min(deadline - time.monotonic(), self._pause(due_us)))
        return self._store.parking.withdraw(self._id, waiter) or (self._claim_now(waiter) if is_due else [])

    def _look_for_due(self) -> int | None:
        try:
            return self._engine.read(partial(looking.next_due_us, queue_id=self._id, fifo=self._spec.fifo))
        except QueueNotFound as error:
            raise self._deleted() from error

    def _pause(self, due_us: int | None) -> float:
        if due_us is None:
            return self._look_every
        return min(self._look_every, max(0.001, (due_us - self._engine.monotonic_us()) / 1_000_000))

    def _give_back(self, waiter: Waiter) -> None:
        """Undo what was leased for a receiver that was interrupted while it waited."""
        found = self._store.parking.withdraw(self._id, waiter)
        if found:
            self.undo(self._store.claimer.deliveries(found))

    def _sweep(self, *, force: bool = False) -> None:
        """Let expired messages go, at most once a second."""
        now = self._engine.clock.monotonic()
        if not force and now - self._swept_at < _SWEEP_EVERY:
            return
        self._swept_at = now
        self._store.sweep_at_times(here=True)
        oldest = self._engine.read(partial(looking.oldest_us, queue_id=self._id))
        if oldest is None or oldest > self._engine.now_us() - self._spec.retention * 1_000_000:
            return
        if self._engine.read_only:
            return
        while self._write(lambda tx, state: self._store.sweeper.expire_oldest(tx, state), durable=False, removes=True):
            continue


def _traits(spec: QueueSpec, *, durable: bool) -> QueueTraits:
    return QueueTraits(
        fifo=spec.fifo,
        durable=durable,
        exclusive=True,
        peeks_clean=True,
        tells_stale_acks=True,
        atomic_reject=True,
        keeps_release_error=True,
        counts_expired=True,
        auto_deletes=True,
        max_message_bytes=spec.max_message_bytes,
        visibility=spec.visibility,
        max_receives=None if spec.dead_letter is None else spec.max_receives,
        short_waits=True,
        defers_by="undo",
    )
