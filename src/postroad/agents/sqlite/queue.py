"""An agent's lane on the embedded engine, as a queue that nobody sends to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from postroad import failpoints
from postroad.agents.sqlite import queries
from postroad.agents.sqlite.waking import channels_of
from postroad.agents.tables import lane_name
from postroad.arguments import check, seconds_between, whole_number
from postroad.clock import SystemClock
from postroad.engine import Transaction
from postroad.errors import NotSupported, QueueNotFound
from postroad.queues import (
    MAX_MESSAGE_BYTES,
    MAX_VISIBILITY,
    AckResult,
    Delivery,
    Note,
    OutgoingMessage,
    PeekedMessage,
    QueueStats,
    QueueTraits,
    SendResult,
    check_receive,
    legible,
)

if TYPE_CHECKING:
    from postroad.agents.sqlite.lanes import SQLiteLanes

T = TypeVar("T")

_LONGEST_PEEK: Final = 1_000
_LOOK_AGAIN: Final = 0.05
_LONGEST_PAUSE: Final = 3_600.0


class Lane:
    """One agent's messages. It has no table, file, thread or timer of its own."""

    def __init__(self, lanes: SQLiteLanes, agent_id: str, lane: int) -> None:
        self._lanes = lanes
        self._engine = lanes.engine
        self._lane = lane
        self.name = lane_name(agent_id)
        # A clock that only moves when a test moves it rings no bell.
        self._look_every = _LONGEST_PAUSE if isinstance(self._engine.clock, SystemClock) else _LOOK_AGAIN

    @property
    def traits(self) -> QueueTraits:
        return self._lanes.traits

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        raise NotSupported(
            f'nobody sends to "{self.name}": events come from the stream',
            remedy="Publish the event under its agent's id, and subscribe this agent to it.",
        )

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        check_receive(max_messages, wait, visibility)
        visibility_us = int((self._lanes.visibility if visibility is None else visibility) * 1_000_000)
        if wait and not self._engine.in_transaction:
            deliveries = self._receive_waiting(max_messages, wait, visibility_us)
        else:
            deliveries = self._claim(max_messages, visibility_us)
        failpoints.hit("queue.receive.after_commit")
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = self._write(self._lanes.settler.ack, deliveries, removes=True)
        failpoints.hit("queue.ack.after_commit")
        return results

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        check(seconds, seconds_between(0, MAX_VISIBILITY), "seconds")
        return self._write(self._lanes.settler.extend, deliveries, seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        check(after, seconds_between(0, MAX_VISIBILITY), "after")
        check(error, Note | None, "error")
        return self._write(self._lanes.settler.release, deliveries, after, None if error is None else legible(error))

    def undo(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Give back what was not handled, without spending a receive."""
        return self._write(self._lanes.settler.undo, deliveries)

    def watch(self, rung: Callable[[bool], None]) -> AbstractContextManager[object]:
        """Call `rung` whenever the lane changed (True) or may have (False)."""
        return self._engine.watch(rung, *channels_of(self._lane))

    def due_seconds(self) -> float | None:
        """How long until a receive may find something; None for not before the lane changes."""
        due_us = self._due_us()
        if due_us is None:
            return None if self._look_every == _LONGEST_PAUSE else self._look_every
        return min(self._look_every, max(0.0, (due_us - self._engine.monotonic_us()) / 1_000_000))

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        check(reason, Note | None, "reason")
        check(error, Note | None, "error")
        return self._write(self._lanes.settler.reject, deliveries, reason, error, durable=True, relieves=True)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")

        def look(connection: apsw.Connection) -> list[PeekedMessage]:
            return queries.peek(
                connection,
                self._lanes.reader,
                self._lane,
                after=after,
                limit=limit,
                monotonic_us=self._engine.monotonic_us(),
                now_us=self._engine.now_us(),
            )

        return self._engine.read(look)

    def stats(self) -> QueueStats:
        def look(connection: apsw.Connection) -> QueueStats:
            held = queries.count(
                connection, self._lane, monotonic_us=self._engine.monotonic_us(), now_us=self._engine.now_us()
            )
            expired = queries.expired(connection, self._lane)
            return QueueStats(
                held.visible, held.in_flight, held.delayed + (held.held or 0), held.oldest_age_seconds, expired
            )

        return self._engine.read(look)

    def _claim(self, limit: int, visibility_us: int) -> list[Delivery]:
        while True:
            found = self._write(
                lambda tx, lane: self._lanes.claimer.claim(tx, lane, limit=limit, visibility_us=visibility_us)
            )
            if found.deliveries or not found.more:
                return found.deliveries

    def _receive_waiting(self, limit: int, wait: float, visibility_us: int) -> list[Delivery]:
        """Look, and wait for a bell before looking again; what was rung before counts."""
        deadline = time.monotonic() + wait
        with self._engine.listen(*channels_of(self._lane)) as ear:
            while True:
                due_us = self._due_us()
                now_us = self._engine.monotonic_us()
                if due_us is not None and due_us <= now_us and (found := self._claim(limit, visibility_us)):
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                until_due = _LONGEST_PAUSE if due_us is None else (due_us - now_us) / 1_000_000
                ear.wait(min(left, self._look_every, max(0.001, until_due)))

    def _due_us(self) -> int | None:
        try:
            return self._engine.read(lambda connection: queries.due_us(connection, self._lane))
        except QueueNotFound as error:
            raise self._deleted() from error

    def _write(
        self,
        verb: Callable[..., T],
        *arguments: Any,
        durable: bool = False,
        relieves: bool | None = None,
        removes: bool = False,
    ) -> T:
        """Run `verb(tx, lane, *arguments)` in the engine's next transaction."""

        def work(tx: Transaction) -> T:
            return verb(tx, self._lane, *arguments)

        try:
            return self._engine.write(work, durable=durable, relieves=relieves, removes=removes)
        except QueueNotFound as error:
            raise self._deleted() from error

    def _deleted(self) -> QueueNotFound:
        return QueueNotFound(f'the agent of "{self.name}" was deleted')


def traits_of(*, durable: bool, visibility: float, max_receives: int) -> QueueTraits:
    """What a lane promises."""
    return QueueTraits(
        fifo=True,
        durable=durable,
        exclusive=True,
        peeks_clean=True,
        tells_stale_acks=True,
        atomic_reject=True,
        keeps_release_error=True,
        counts_expired=True,
        auto_deletes=False,
        max_message_bytes=MAX_MESSAGE_BYTES,
        visibility=visibility,
        max_receives=max_receives,
        short_waits=True,
    )
