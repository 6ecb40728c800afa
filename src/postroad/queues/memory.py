"""Queues in the memory of this process: the rules without a disk, for tests and for trying out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidInput, NotSupported, StaleReceipt
from postroad.queues import rules
from postroad.queues.markers import mark_dead
from postroad.queues.moving import Decide, Keep, Looked, Move, MoveStep
from postroad.queues.port import (
    AckResult,
    Delivery,
    OutgoingMessage,
    PeekedMessage,
    QueueStats,
    QueueTraits,
    SendResult,
)
from postroad.queues.shelf import Kept, Shelf
from postroad.queues.shelves import Shelves
from postroad.queues.spec import MAX_VISIBILITY, QueueSpec, check_name, check_spec
from postroad.queues.stores import QueueOverview, overviews_one_by_one, sources_one_by_one

# A waiting receiver looks again this often, since leases end without anybody telling it.
_LOOK_AGAIN = 0.05
_TAKEN_AT_ONCE = 100
_OK = AckResult(ok=True)


class MemoryQueues:
    """All queues of one memory. Threads may share it; it ends with the process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.shelves = Shelves(clock)

    @property
    def clock(self) -> Clock:
        """The clock that leases, delays and ages go by."""
        return self.shelves.clock

    @property
    def auto_deleted(self) -> int:
        """How many queues were removed because nobody renewed them."""
        return self.shelves.auto_deleted

    def create_queue(self, spec: QueueSpec) -> MemoryQueue:
        """Make the queue, or return it when it exists with the same settings."""
        check_spec(spec)
        with self.shelves.lock:
            self.shelves.open(spec)
        return MemoryQueue(self.shelves, spec.name)

    def update_queue(self, spec: QueueSpec) -> MemoryQueue:
        """Give an existing queue these settings."""
        check_spec(spec)
        with self.shelves.lock:
            self.shelves.change(spec)
        return MemoryQueue(self.shelves, spec.name)

    def delete_queue(self, name: str) -> None:
        """Remove the queue with what it holds."""
        check_name(name)
        with self.shelves.lock:
            self.shelves.delete(name)

    def queue(self, name: str) -> MemoryQueue:
        """The queue of this name, or `QueueNotFound`."""
        self.queue_spec(name)
        return MemoryQueue(self.shelves, name)

    def queue_spec(self, name: str) -> QueueSpec:
        """The settings of the queue."""
        check_name(name)
        with self.shelves.lock:
            return self.shelves.get(name).spec

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        with self.shelves.lock:
            return self.shelves.names()

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Look at these queues, by default at all."""
        return overviews_one_by_one(self, names)

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have this one as their dead-letter queue, sorted."""
        return sources_one_by_one(self, dead_letters)

    def close(self) -> None:
        """Refuse every use of the queues from now on."""
        self.shelves.lock.close()


class MemoryQueue:
    """One queue of `MemoryQueues`."""

    def __init__(self, shelves: Shelves, name: str) -> None:
        self._shelves = shelves
        self._clock = shelves.clock
        self.name = name

    @property
    def traits(self) -> QueueTraits:
        """What this queue promises."""
        with self._shelves.lock:
            spec = self._shelves.get(self.name).spec
        return QueueTraits(
            fifo=spec.fifo,
            durable=False,
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
        )

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Keep the messages. A message that breaks a limit refuses the whole call."""
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            bodies = rules.check_messages(shelf.spec, messages)
            results = [self._send(shelf, message, body) for message, body in zip(messages, bodies, strict=True)]
            self._shelves.arrival(self.name).notify_all()
        return results

    def _send(self, shelf: Shelf, message: OutgoingMessage, body: bytes) -> SendResult:
        if (first := shelf.recall(message, body)) is not None:
            return first
        kept = Kept(
            message_id=str(uuid.uuid4()),
            body=body,
            attributes=dict(message.attributes),
            group=message.group,
            sequence=self._shelves.next_sequence(),
            sent_at=self._clock.now(),
            visible_at=self._clock.monotonic() + (message.delay or shelf.spec.delay),
        )
        shelf.put(kept)
        result = SendResult(ok=True, message_id=kept.message_id, sequence=kept.sequence)
        shelf.remember(message, body, result)
        return result

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease up to `max_messages`, waiting up to `wait` seconds of real time for the first one."""
        rules.check_receive(max_messages, wait, visibility)
        deadline = time.monotonic() + wait
        with self._shelves.lock:
            while True:
                leased = self._lease(max_messages, visibility)
                left = deadline - time.monotonic()
                if leased or left <= 0:
                    return leased
                self._shelves.arrival(self.name).wait(min(left, _LOOK_AGAIN))
                self._shelves.lock.check()

    def _lease(self, max_messages: int, visibility: float | None) -> list[Delivery]:
        shelf = self._shelves.get(self.name)
        shelf.renewed_at = self._clock.monotonic()
        dead_letters = self._shelves.find(shelf.spec.dead_letter)
        due: list[Kept] = []
        dead: list[Kept] = []
        for kept in shelf.visible():
            exhausted = dead_letters is not None and kept.receives >= shelf.spec.max_receives
            (dead if exhausted else due).append(kept)
            if len(due) == max_messages:
                break
        for kept in dead:
            self._bury(shelf, dead_letters, kept, reason=None)
        seconds = shelf.spec.visibility if visibility is None else visibility
        return [shelf.lease(kept, seconds) for kept in due]

    def _bury(self, shelf: Shelf, dead_letters: Shelf | None, kept: Kept, *, reason: str | None) -> None:
        assert dead_letters is not None
        attributes = mark_dead(
            kept.attributes,
            source=self.name,
            receives=kept.receives,
            error=kept.error,
            at=self._clock.now(),
            reason=reason,
        )
        # SQS goes on counting a standard message's age in the dead letters, and starts a FIFO one's anew.
        self._shelves.transfer(kept, shelf, dead_letters, attributes, keep_age=not shelf.spec.fifo)

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Forget the messages. Acking a stale receipt changes nothing."""

        def forget(shelf: Shelf, kept: Kept) -> AckResult:
            shelf.remove(kept)
            return _OK

        return self._settle(deliveries, forget, late=True)

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        """Keep the leases for `seconds` from now, at most twelve hours in all."""
        rules.check_seconds(seconds, "seconds", MAX_VISIBILITY)

        def extend(shelf: Shelf, kept: Kept) -> AckResult:
            return _OK if shelf.extend(kept, seconds) else _too_long()

        return self._settle(deliveries, extend)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        """Give the messages back, to be received again after `after` seconds."""
        rules.check_seconds(after, "after", MAX_VISIBILITY)
        rules.check_note(error, "error")

        def release(shelf: Shelf, kept: Kept) -> AckResult:
            shelf.release(kept, after, error)
            return _OK

        return self._settle(deliveries, release)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        """Move the messages to the dead letters now, with the reason."""
        rules.check_note(reason, "reason")
        rules.check_note(error, "error")
        with self._shelves.lock:
            dead_letters = self._shelves.find(self._shelves.get(self.name).spec.dead_letter)
            if dead_letters is None:
                raise NotSupported(
                    f"queue {self.name!r} has no dead-letter queue to reject into",
                    remedy="Name one with QueueSpec(dead_letter=...), or ack the message.",
                )

            def bury(shelf: Shelf, kept: Kept) -> AckResult:
                kept.error = error if error is not None else kept.error
                self._bury(shelf, dead_letters, kept, reason=reason)
                return _OK

            return self._settle(deliveries, bury)

    def _settle(
        self, deliveries: Sequence[Delivery], act: Callable[[Shelf, Kept], AckResult], *, late: bool = False
    ) -> list[AckResult]:
        rules.check_deliveries(deliveries)
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            late = late and not shelf.spec.fifo
            held = ((delivery, shelf.held(delivery.receipt, late=late)) for delivery in deliveries)
            results = [_stale(delivery) if kept is None else act(shelf, kept) for delivery, kept in held]
            # An ended lease may set a message or a whole group free.
            self._shelves.arrival(self.name).notify_all()
        return results

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        """Look at messages in order, starting behind the message id `after`, without leasing them."""
        rules.check_count(limit, "limit", rules.MAX_RECEIVE)
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            messages = iter(shelf.messages.values())
            # `any` stops behind the message it was looking for.
            if after is not None and not any(kept.message_id == after for kept in messages):
                raise InvalidInput(f"after: the queue holds no message {after!r}", field="after")
            return [kept.peeked(shelf.state(kept)) for kept in islice(messages, limit)]

    def stats(self) -> QueueStats:
        """Count what the queue holds."""
        with self._shelves.lock:
            return self._shelves.get(self.name).stats()

    def move(
        self, decide: Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        """Look at up to `limit` messages behind `cursor`, or at `only` these, and move those `decide` sends on."""
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            if only is None:
                behind = _behind(shelf, cursor, limit + 1)
            else:
                behind, limit = [shelf.messages[each] for each in only if each in shelf.messages], len(only)
            looked_at = behind[:limit]
            free = [kept for kept in looked_at if shelf.state(kept) != "in_flight"]
            wanted = [(kept, move) for kept in free if (move := decide(kept.peeked(shelf.state(kept)))) is not None]
            self._move(shelf, wanted)
        return MoveStep(
            cursor=str(looked_at[-1].sequence) if len(behind) > limit else None,
            looked_at=len(looked_at),
            moved=tuple((kept.message_id, move.to) for kept, move in wanted),
            in_flight=len(looked_at) - len(free),
        )

    def _move(self, shelf: Shelf, wanted: list[tuple[Kept, Move]]) -> None:
        destinations = {move.to: self._shelves.get(move.to) for _, move in wanted}
        for kept, move in wanted:
            self._shelves.transfer(kept, shelf, destinations[move.to], move.attributes, keep_age=False)

    def look(self, *, cursor: str | None = None, limit: int = 500) -> Looked:
        """See up to `limit` messages behind `cursor`."""
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            found = _behind(shelf, cursor, limit + 1)
            seen = tuple(kept.peeked(shelf.state(kept)) for kept in found[:limit])
        return Looked(seen, str(seen[-1].sequence) if len(found) > limit else None)

    def stop(self, cursor: str | None) -> None:
        """A walk holds nothing here."""

    def whereabouts(self, ids: Collection[str]) -> dict[str, str]:
        """The queue that each of these messages is in."""
        with self._shelves.lock:
            return self._shelves.find_messages(ids)

    def native(self) -> None:
        """The steps of moving are all there is."""

    def take_out(self, keep: Keep) -> int:
        """Hand everything to `keep` in parts, and remove each part afterwards."""
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            held = [(kept, kept.peeked(shelf.state(kept))) for kept in shelf.messages.values()]
        removed = 0
        for start in range(0, len(held), _TAKEN_AT_ONCE):
            part = held[start : start + _TAKEN_AT_ONCE]
            keep([message for _, message in part])
            removed += self._remove([kept for kept, _ in part])
        return removed

    def _remove(self, taken: list[Kept]) -> int:
        with self._shelves.lock:
            shelf = self._shelves.get(self.name)
            there = [kept for kept in taken if shelf.messages.get(kept.sequence) is kept]
            for kept in there:
                shelf.remove(kept)
        return len(there)

    def end(self) -> str | None:
        """The cursor behind the last message the queue holds now."""
        with self._shelves.lock:
            return str(next(reversed(self._shelves.get(self.name).messages), 0))

    def purge(self) -> int:
        """Remove everything the queue holds, leased messages included; how many there were."""
        with self._shelves.lock:
            return self._shelves.get(self.name).clear()


def _behind(shelf: Shelf, cursor: str | None, count: int) -> list[Kept]:
    start = 0 if cursor is None else int(cursor)
    return list(islice((kept for kept in shelf.messages.values() if kept.sequence > start), count))


def _too_long() -> AckResult:
    message = f"seconds: a lease lasts at most {MAX_VISIBILITY:.0f} seconds in all"
    return AckResult(ok=False, error=InvalidInput(message, field="seconds"))


def _stale(delivery: Delivery) -> AckResult:
    message = f"the lease of message {delivery.message_id} is over"
    return AckResult(ok=False, error=StaleReceipt(message, field="receipt"))
