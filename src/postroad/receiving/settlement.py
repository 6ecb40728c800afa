"""Carrying out what was decided: ack, retry, reject or defer, and the release of what waits behind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from postroad.errors import PostroadError, StaleReceipt
from postroad.queues import MAX_DELAY, AckResult, Delivery, OutgoingMessage, Queue, Watchable, legible
from postroad.receiving.breaker import Breaker
from postroad.receiving.leases import Acks, Attempts, Held, Leases
from postroad.receiving.outcomes import Ack, DeadLetters, Defer, Outcome, Reject, Retry

HANDLER_FAILED = "handler_failed"
Withdraw = Callable[[Sequence[Held]], list[Held]]


class Observe(Protocol):
    """Hears what happens to a message: one call for each log line and count."""

    def __call__(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None: ...


class Counts:
    """Counts by name, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count `count` more."""
        with self._lock:
            self._counts[name] += count

    def take(self) -> dict[str, int]:
        """Return what was counted since the last time it was taken."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def read(self) -> dict[str, int]:
        """Return all counts."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Settles the messages of one receiver."""

    acks: Acks
    leases: Leases
    attempts: Attempts
    dead_letters: DeadLetters
    retry_delays: Sequence[float]
    max_receives: int | None
    breaker: Breaker
    counts: Counts
    observe: Observe

    def settle(self, held: Held, outcome: Outcome, behind: Sequence[Held], withdraw: Withdraw) -> bool:
        """Carry out the outcome and return whether those behind the message in its group may follow now.

        Of those behind it, `withdraw` returns the ones on which nothing began: they are released together with it.
        """
        if held.lost:
            self.lose(held, withdraw(behind), about=getattr(outcome, "about", None))
            return False
        if isinstance(outcome, Ack):
            self._ack(held, outcome)
            return True
        if isinstance(outcome, Defer):
            if _takes_back(held.queue):
                self._take_back(held, outcome.after, withdraw(behind))
                return False
            if held.queue.traits.defers_by == "copy" and self._replace(held, outcome.after):
                return True
            outcome = Retry(outcome.after, label="deferred")
        if isinstance(outcome, Retry) and not self._is_last(held, outcome):
            if behind and self._is_last_for_queue(held, outcome) and self._reject_on_queue(held, outcome):
                return True
            self._come_again(held, outcome, withdraw(behind))
            return False
        last = outcome if isinstance(outcome, Reject) else _as_reject(outcome)
        if self._reject(held, last):
            return True
        self._come_again(held, Retry(last.after, last.error, label=last.label, about=last.about), withdraw(behind))
        return False

    def lose(self, held: Held, behind: Sequence[Held], *, about: object = None) -> None:
        """Leave a message alone whose lease is lost, and give back what waits behind it in its group."""
        self.leases.let_go([held])
        self.counts.add("lost")
        self.observe("lease_lost", held.delivery, about=about)
        self.give_back(behind)

    def give_back(self, helds: Sequence[Held], *, begun: bool = False) -> None:
        """Release messages; where nothing began on them, that receive does not count as an attempt."""
        if helds:
            self._note_released(helds, spared=[each for each in helds if begun or not _takes_back(each.queue)])
            self._release(helds, undo=not begun)

    def _ack(self, held: Held, outcome: Ack) -> None:
        self.leases.let_go([held])
        self.acks.add(held.queue, held.delivery)
        self.counts.add("acked")
        if outcome.label is None:
            self.breaker.succeeded()
        self.observe("acked", held.delivery, label=outcome.label, about=outcome.about)

    def _is_last(self, held: Held, outcome: Retry) -> bool:
        """Whether the message was tried often enough."""
        most = self.max_receives if outcome.max_attempts is None else outcome.max_attempts
        return outcome.label is None and most is not None and self.attempts.number(held.delivery) >= most

    def _is_last_for_queue(self, held: Held, outcome: Retry) -> bool:
        """Whether the queue would move the message to its dead letters at the next receive.

        It would move those behind it, too, which were received as often.
        """
        most = held.queue.traits.max_receives
        return outcome.label is None and most is not None and held.delivery.receive_count >= most

    def _come_again(self, held: Held, outcome: Retry, behind: Sequence[Held]) -> None:
        """Release the message and those behind it in one call, so that one delay holds for the whole group."""
        attempt, error = self.attempts.number(held.delivery), _legible(outcome.error)
        after = self._delay(attempt) if outcome.after is None else outcome.after
        self.counts.add("retried")
        if outcome.label is None:
            self.breaker.failed()
        self.observe(
            "retried",
            held.delivery,
            label=outcome.label,
            about=outcome.about,
            error=error,
            attempt=attempt,
            after=after,
        )
        traits = held.queue.traits
        if self.max_receives is None and traits.fifo and traits.max_receives is not None:
            self.attempts.expect(held.delivery, after)
        self._note_released(behind, spared=behind)
        self._release([held, *behind], after=after, error=error)

    def _delay(self, attempt: int) -> float:
        """Return the pause after this attempt; the last delay repeats."""
        return self.retry_delays[min(attempt, len(self.retry_delays)) - 1] if self.retry_delays else 0.0

    def _take_back(self, held: Held, after: float, behind: Sequence[Held]) -> None:
        """Have the queue take the receive back, and with it those of the messages behind, so that order holds."""
        self._deferred(held, after)
        self._note_released(behind, spared=())
        self._release([held, *behind], after=after, undo=True)

    def _replace(self, held: Held, after: float) -> bool:
        """Send a delayed copy in place of the message, whose own receives would count; False when that failed.

        A crash before the message is deleted leaves both.
        """
        self.leases.let_go([held])
        copy = OutgoingMessage(held.delivery.body, held.delivery.attributes, delay=min(after, MAX_DELAY))
        try:
            (sent,) = held.queue.send([copy])
        except Exception as error:
            self.observe("settle_failed", held.delivery, error=error)
            return False
        if sent.ok:
            self.acks.add(held.queue, held.delivery)
            self._deferred(held, after)
        return sent.ok

    def _deferred(self, held: Held, after: float) -> None:
        self.counts.add("deferred")
        self.observe("deferred", held.delivery, after=after)

    def _reject(self, held: Held, outcome: Reject) -> bool:
        """Move the message to the dead letters; False when it stayed."""
        self.leases.let_go([held])
        try:
            moved = self.dead_letters.bury(held.queue, held.delivery, reason=outcome.reason, error=outcome.error)
        except Exception as error:
            self.observe("settle_failed", held.delivery, error=error)
            return False
        if moved:
            self._rejected(held, outcome)
        return moved

    def _reject_on_queue(self, held: Held, outcome: Retry) -> bool:
        """Move the message to the queue's own dead letters now."""
        try:
            (result,) = held.queue.reject([held.delivery], reason=HANDLER_FAILED, error=outcome.error)
        except PostroadError:
            return False
        if result.ok:
            self.leases.let_go([held])
            self._rejected(held, _as_reject(outcome))
        return result.ok

    def _rejected(self, held: Held, outcome: Reject) -> None:
        self.counts.add("rejected")
        if outcome.label is None:
            self.breaker.failed()
        self.observe(
            "rejected",
            held.delivery,
            label=outcome.label,
            about=outcome.about,
            reason=outcome.reason,
            error=_legible(outcome.error),
            attempt=self.attempts.number(held.delivery),
        )

    def _note_released(self, helds: Sequence[Held], *, spared: Sequence[Held]) -> None:
        """Tell of messages whose release follows; the receives of those that are spared are not attempts."""
        if helds:
            deliveries = [held.delivery for held in helds]
            self.attempts.spare(held.delivery for held in spared)
            self.counts.add("released", len(deliveries))
            self.observe("released", None, deliveries=deliveries)

    def _release(
        self, helds: Sequence[Held], *, after: float = 0.0, error: str | None = None, undo: bool = False
    ) -> None:
        """Release last to first, so that no later message of a group comes before an earlier one.

        With `undo` the receive is taken back where the queue can do that.
        """
        self.leases.let_go(helds)
        for queue in {id(held.queue): held.queue for held in helds}.values():
            mine = [held.delivery for held in reversed(helds) if held.queue is queue and not held.lost]
            for delivery, result in zip(mine, _released(queue, mine, after, error, undo=undo), strict=True):
                if not result.ok:
                    self.observe("settle_failed", delivery, error=result.error or StaleReceipt("the lease was lost"))


def _takes_back(queue: Queue) -> bool:
    return queue.traits.defers_by == "undo"


def _released(
    queue: Queue, deliveries: Sequence[Delivery], after: float, error: str | None, *, undo: bool
) -> list[AckResult]:
    if not deliveries:
        return []
    try:
        if undo and _takes_back(queue):
            return cast(Watchable, queue).undo(deliveries, after=after)
        return queue.release(deliveries, after=after, error=error)
    except Exception as failure:
        # Unreleased, they come back by themselves when their visibility ends.
        return [AckResult(ok=False, error=failure) for _ in deliveries]


def _legible(error: str | None) -> str | None:
    return None if error is None else legible(error)


def _as_reject(outcome: Retry) -> Reject:
    return Reject(HANDLER_FAILED, outcome.error, after=outcome.after, about=outcome.about)
