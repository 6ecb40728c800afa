"""The messages that a receiver holds: leases that are extended, acks in batches, and the attempts at each.

One thread of the receiver, the housekeeping, extends leases and sends acks while its other threads wait or handle.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from postroad.clock import Clock, SystemClock
from postroad.errors import NotSupported, PostroadError, StaleReceipt
from postroad.queues import AckResult, Delivery, Queue

Observe = Callable[..., None]
"""Called as `observe(what, delivery, **fields)` for each thing that happens to a message."""
_IDLE_SECONDS = 5.0
_AFTER_FAILURE = 1.0
# A clock that moves only when a test moves it wakes nobody.
_LOOK_AGAIN = 0.02


class Chore(Protocol):
    """Something that has to be done from time to time."""

    def due(self) -> float | None:
        """Return the monotonic time at which to run next; None when there is nothing to do."""
        ...

    def run(self) -> None:
        """Do what is due. It raises nothing."""
        ...


@dataclass(slots=True, eq=False)
class Housekeeper:
    """Runs chores when they are due. Its thread starts when first woken and ends when there is nothing to wait for."""

    _clock: Clock
    _chores: Sequence[Chore]
    _observe: Observe
    owner: object = None
    """An object that lives for as long as there are chores to wait for."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _planned: float = 0.0
    _running: bool = False

    def wake(self) -> None:
        """Check again what is due; this is cheap if nothing is due earlier than planned."""
        due = self._next_due()
        if due is None:
            return
        with self._changed:
            if not self._running:
                self._running, self._planned = True, due
                threading.Thread(target=self._run, name="postroad-housekeeping", daemon=True).start()
            elif due < self._planned:
                self._planned = due
                self._changed.notify()

    def _next_due(self) -> float | None:
        return min([due for chore in self._chores if (due := chore.due()) is not None], default=None)

    def _run(self) -> None:
        while self._wait():
            now = self._clock.monotonic()
            for chore in self._chores:
                try:
                    if (due := chore.due()) is not None and due <= now:
                        chore.run()
                except Exception as error:
                    # One chore must not end the others, nor keep this thread busy with failing.
                    self._observe("chore_failed", None, error=error)
                    time.sleep(_AFTER_FAILURE)

    def _wait(self) -> bool:
        """Wait until something is due; False ends the thread."""
        with self._changed:
            while True:
                due = self._next_due()
                if due is not None and due <= self._clock.monotonic():
                    return True
                # What it was woken for may be done by now. It looks at that time all the same, because the next batch
                # is due soon after it and then needs to wake nobody.
                self._planned = planned = self._planned if due is None else min(due, self._planned)
                left = _IDLE_SECONDS if planned == math.inf else planned - self._clock.monotonic()
                if due is not None and not isinstance(self._clock, SystemClock):
                    left = min(left, _LOOK_AGAIN)
                if not self._changed.wait(left):
                    self._planned = math.inf
                    if planned == math.inf and self._next_due() is None:
                        self._running = False
                        return False


# Leases that are due within this part of the visibility are extended together with those that are due now.
_SOON = 0.1


@dataclass(slots=True, eq=False)
class Held:
    """A delivery that is not settled yet."""

    queue: Queue
    delivery: Delivery
    covered_until: float
    begun_at: float | None = None
    lost: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Leases:
    """All messages that are held. Every lease is extended in time, in batches, also those of messages that wait."""

    visibility: float
    clock: Clock
    observe: Observe
    longest: float
    extend_every: float
    on_extended: Callable[[Delivery], object] | None
    on_lost: Callable[[Delivery], object] | None
    wake: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _extending: threading.Lock = field(default_factory=threading.Lock)
    """Held while leases are extended, so that none is extended after it was settled."""
    _held: dict[int, Held] = field(default_factory=dict)
    _can_extend: bool = True

    def __len__(self) -> int:
        return len(self._held)

    def take(self, queue: Queue, deliveries: Iterable[Delivery]) -> list[Held]:
        until = self.clock.monotonic() + self.visibility
        taken = [Held(queue, delivery, until) for delivery in deliveries]
        with self._lock:
            self._held.update({id(held): held for held in taken})
        self.wake()
        return taken

    def begin(self, held: Held) -> None:
        """Note that a handler starts now: from here on the longest time counts."""
        held.begun_at = self.clock.monotonic()

    def handled_ms(self, held: Held) -> float | None:
        """Return for how many milliseconds the handler of a message has run; None if it has not begun."""
        return None if held.begun_at is None else round((self.clock.monotonic() - held.begun_at) * 1_000, 3)

    def let_go(self, helds: Iterable[Held]) -> None:
        """Stop extending these: they are about to be settled."""
        with self._extending, self._lock:
            for held in helds:
                self._held.pop(id(held), None)

    def due(self) -> float | None:
        """Return when the next lease needs an extension."""
        if not self._can_extend or not self.visibility:
            return None
        with self._lock:
            until = min((held.covered_until for held in self._held.values() if self._coverable(held)), default=math.inf)
        return None if until == math.inf else until - self.visibility + self.extend_every

    def run(self) -> None:
        with self._extending:
            soon = self.clock.monotonic() + self.visibility * (1 + _SOON) - self.extend_every
            with self._lock:
                due = [held for held in self._held.values() if self._coverable(held) and held.covered_until <= soon]
            for queue in {id(held.queue): held.queue for held in due}.values():
                self._extend(queue, [held for held in due if held.queue is queue])

    def _coverable(self, held: Held) -> bool:
        too_long = held.begun_at is not None and self.clock.monotonic() - held.begun_at > self.longest
        return not held.lost and not too_long

    def _extend(self, queue: Queue, helds: Sequence[Held]) -> None:
        until = self.clock.monotonic() + self.visibility
        try:
            results = queue.extend([held.delivery for held in helds], seconds=self.visibility)
            failures = [None if result.ok else result.error for result in results]
        except PostroadError as error:
            failures = [error for _ in helds]
        for held, failure in zip(helds, failures, strict=True):
            if failure is None:
                held.covered_until = until
                self._call(self.on_extended, held.delivery)
            elif isinstance(failure, NotSupported):
                self._can_extend = False
            else:
                held.lost = isinstance(failure, StaleReceipt)
                # Tried again soon, while the lease may still be valid.
                held.covered_until += self.visibility / 8
                self.observe("heartbeat_failed", held.delivery, error=failure)
                if held.lost:
                    self._call(self.on_lost, held.delivery)

    def _call(self, function: Callable[[Delivery], object] | None, delivery: Delivery) -> None:
        """Call a function of the user's own; what it raises must not keep other leases from being extended."""
        try:
            if function is not None:
                function(delivery)
        except BaseException as error:
            self.observe("chore_failed", None, error=error)


_MOST_ACKS = 10
_LATEST_SECONDS = 0.05
_ACK_ATTEMPTS = 3


@dataclass(slots=True)
class _Waiting:
    queue: Queue
    delivery: Delivery
    attempts: int = 0


@dataclass(slots=True, eq=False)
class Acks:
    """Acks handled messages in batches. One that fails three times is reported: deduplication covers the redelivery."""

    clock: Clock
    observe: Observe
    wake: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: list[_Waiting] = field(default_factory=list)
    _first_at: float | None = None

    def add(self, queue: Queue, delivery: Delivery) -> None:
        with self._lock:
            self._waiting.append(_Waiting(queue, delivery))
            first = self._first_at is None
            if first:
                self._first_at = self.clock.monotonic()
            full = len(self._waiting) >= _MOST_ACKS
        if full:
            self.flush()
        elif first:
            self.wake()

    def due(self) -> float | None:
        """Return when the first of those that wait has waited long enough."""
        first_at = self._first_at
        return None if first_at is None else first_at + _LATEST_SECONDS

    def flush(self) -> None:
        with self._lock:
            batch, self._waiting, self._first_at = self._waiting, [], None
        for queue in {id(each.queue): each.queue for each in batch}.values():
            self._ack(queue, [each for each in batch if each.queue is queue])

    run = flush

    def _ack(self, queue: Queue, batch: Sequence[_Waiting]) -> None:
        try:
            results = queue.ack([each.delivery for each in batch])
        except PostroadError as error:
            results = [AckResult(ok=False, error=error) for _ in batch]
        again = []
        for each, result in zip(batch, results, strict=True):
            each.attempts += 1
            if result.ok:
                continue
            if each.attempts < _ACK_ATTEMPTS and not isinstance(result.error, StaleReceipt):
                again.append(each)
            else:
                why = result.error or StaleReceipt("the message was not acked")
                self.observe("ack_failed", each.delivery, error=why)
        if again:
            with self._lock:
                self._waiting += again
                self._first_at = self._first_at or self.clock.monotonic()
            self.wake()


_MOST_SPARED = 10_000
# Another receiver may have received a message that was expected here.
_GIVE_UP_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class Attempts:
    """Counts the attempts at the messages of one receiver, and knows which failed ones are about to come again.

    A FIFO queue hands out the messages of a group together and counts each receive of each of them. One that fails
    would take those behind it along to the dead letters, although nothing handled them; so it is received alone.
    """

    _clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _spared: dict[str, int] = field(default_factory=dict)
    _expected: dict[str, float] = field(default_factory=dict)

    def spare(self, deliveries: Iterable[Delivery]) -> None:
        """Do not count these receives as attempts: nothing began on them."""
        with self._lock:
            for delivery in deliveries:
                self._spared[delivery.message_id] = self._spared.pop(delivery.message_id, 0) + 1
            while len(self._spared) > _MOST_SPARED:
                del self._spared[next(iter(self._spared))]

    def number(self, delivery: Delivery) -> int:
        """Return which attempt this receive is, from 1."""
        with self._lock:
            return max(1, delivery.receive_count - self._spared.get(delivery.message_id, 0))

    def expect(self, delivery: Delivery, after: float) -> None:
        """Note that the failed message comes again after so many seconds."""
        with self._lock:
            self._expected[delivery.message_id] = self._clock.monotonic() + after

    def seen(self, deliveries: Sequence[Delivery]) -> None:
        if not self._expected:
            return
        with self._lock:
            for delivery in deliveries:
                self._expected.pop(delivery.message_id, None)

    def batch(self, most: int, wait: float) -> int:
        """Return how many messages to receive: one if an expected message may be among them."""
        if not self._expected:
            return most
        now = self._clock.monotonic()
        with self._lock:
            self._expected = {key: due for key, due in self._expected.items() if due > now - _GIVE_UP_SECONDS}
            return 1 if any(due <= now + wait for due in self._expected.values()) else most
