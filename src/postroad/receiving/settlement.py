"""How a decision is carried out: ack, retry, reject or defer, and the release of what waits behind the message."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from postroad.errors import PostroadError, StaleReceipt
from postroad.queues import MAX_DELAY, AckResult, Delivery, OutgoingMessage, Queue, Watchable, legible
from postroad.receiving.breaker import Breaker
from postroad.receiving.leases import Acks, Attempts, Held, Leases, Observe
from postroad.receiving.outcomes import STOPPED, Ack, DeadLetters, Defer, Outcome, Reject, Retry
from postroad.telemetry import get_logger, redact, tracing

HANDLER_FAILED = "handler_failed"
Withdraw = Callable[[Sequence[Held]], list[Held]]

_standard = logging.getLogger("postroad.receiving")
_QUIET = frozenset({"receiver_acked", "receiver_deferred", "receiver_received", "receiver_released"})
_LINES = _QUIET.union(
    ("receiver_retried", "receiver_rejected", "receiver_lease_lost", "receiver_ack_failed", "receiver_stop_timed_out"),
    ("receiver_heartbeat_failed", "receiver_settle_failed", "receiver_receive_failed", "receiver_chore_failed"),
)


def log_to(name: str) -> Observe:
    """Return a function that logs a line for each thing that happens to a message of this receiver."""

    def observe(what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        line = f"receiver_{what}"
        level = logging.INFO if line in _QUIET else logging.WARNING
        if line not in _LINES or not _standard.isEnabledFor(level):
            return
        about = fields.pop("about", None)
        fields["handler"] = about if isinstance(about, str) else None
        if what == "retried":
            fields["retry_in_seconds"] = fields.pop("after")
        deliveries = fields.pop("deliveries", None)
        if deliveries is not None:
            fields["messages"] = len(deliveries)
        if delivery is not None:
            trace_id = tracing.trace_id(delivery.attributes.get(tracing.TRACE_ATTRIBUTE))
            fields |= {"message_id": delivery.message_id, "receives": delivery.receive_count, "trace_id": trace_id}
        shown = {key: str(value) if isinstance(value, BaseException) else value for key, value in fields.items()}
        present = {key: value for key, value in shown.items() if value is not None}
        get_logger("receiving").log(level, line, receiver=name, **present)

    return observe


def log_traceback(
    error: BaseException, *, part: str = "receiving", line: str = "receiver_traceback", **about: object
) -> None:
    """Log the redacted traceback of a failure at level debug."""
    if logging.getLogger(f"postroad.{part}").isEnabledFor(logging.DEBUG):
        lines = redact("".join(traceback.format_exception(error)))
        get_logger(part).debug(line, traceback=lines, **about)


class Counts:
    """Counters by name, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Add `count` to the counter `name`."""
        with self._lock:
            self._counts[name] += count

    def take(self) -> dict[str, int]:
        """Return the counters and set them to 0."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def read(self) -> dict[str, int]:
        """Return the counters."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Settles the messages of one receiver."""

    name: str
    acks: Acks
    leases: Leases
    attempts: Attempts
    dead_letters: DeadLetters
    retry_delays: Sequence[float]
    max_receives: int | None
    breaker: Breaker | None
    counts: Counts
    observe: Observe

    def settle(self, held: Held, outcome: Outcome, behind: Sequence[Held], withdraw: Withdraw) -> bool:
        """Carry out the outcome and return whether the messages behind this one in its group may follow now.

        Of those behind it, `withdraw` returns the ones on which nothing began: they are released together with it.
        """
        if held.lost:
            self.lose(held, withdraw(behind), about=outcome.about)
            return False
        if isinstance(outcome, Ack):
            self.leases.let_go([held])
            self.acks.add(held.queue, held.delivery)
            self.counts.add("acked")
            if outcome.label is None and self.breaker is not None:
                self.breaker.succeeded()
            self.observe("acked", held.delivery, label=outcome.label, about=outcome.about)
            return True
        if isinstance(outcome, Retry) and outcome.label == STOPPED:
            # The handler did not fail, so this costs it no attempt.
            self.give_back([held, *withdraw(behind)])
            return False
        if isinstance(outcome, Defer):
            if _takes_back(held.queue):
                self._take_back(held, outcome, withdraw(behind))
                return False
            if held.queue.traits.defers_by == "copy" and self._replace(held, outcome):
                return True
            outcome = Retry(outcome.after, label=outcome.label or "deferred", about=outcome.about)
        if isinstance(outcome, Retry) and not self._is_last(held, outcome):
            # At its next receive the queue would move the message to its dead letters, and with it those behind it,
            # which were received as often.
            most = held.queue.traits.max_receives if behind and outcome.label is None else None
            if most is not None and held.delivery.receive_count >= most and self._reject_on_queue(held, outcome):
                return True
            self._come_again(held, outcome, withdraw(behind))
            return False
        last = outcome if isinstance(outcome, Reject) else _as_reject(outcome)
        if self._reject(held, last):
            return True
        self._come_again(held, Retry(last.after, last.error, label=last.label, about=last.about), withdraw(behind))
        return False

    def lose(self, held: Held, behind: Sequence[Held], *, about: object = None) -> None:
        """Leave a message whose lease is lost, and give back those behind it in its group."""
        self.leases.let_go([held])
        self.counts.add("lost")
        self.observe("lease_lost", held.delivery, about=about)
        self.give_back(behind)

    def give_back(self, helds: Sequence[Held], *, begun: bool = False) -> None:
        """Release messages; if nothing began on them, this receive does not count as an attempt."""
        if helds:
            self._note_released(helds, spared=[each for each in helds if begun or not _takes_back(each.queue)])
            self._release(helds, undo=not begun)

    def _is_last(self, held: Held, outcome: Retry) -> bool:
        most = self.max_receives if outcome.max_attempts is None else outcome.max_attempts
        return outcome.label is None and most is not None and self.attempts.number(held.delivery) >= most

    def _come_again(self, held: Held, outcome: Retry, behind: Sequence[Held]) -> None:
        """Release the message and those behind it in one call, so that the whole group waits for the same time."""
        after = outcome.after
        if after is None:
            attempt = self.attempts.number(held.delivery)
            # The last delay repeats.
            after = self.retry_delays[min(attempt, len(self.retry_delays)) - 1] if self.retry_delays else 0.0
        self._note_failed("retried", held, outcome, after=after)
        traits = held.queue.traits
        if self.max_receives is None and traits.fifo and traits.max_receives is not None:
            self.attempts.expect(held.delivery, after)
        self._note_released(behind, spared=behind)
        self._release([held, *behind], after=after, error=outcome.error)

    def _take_back(self, held: Held, outcome: Defer, behind: Sequence[Held]) -> None:
        """Have the queue undo the receive, and those of the messages behind it, so that they stay in order."""
        self._deferred(held, outcome)
        self._note_released(behind, spared=())
        self._release([held, *behind], after=outcome.after, undo=True)

    def _replace(self, held: Held, outcome: Defer) -> bool:
        """Send a delayed copy, because the receives of the message itself count; return False if that failed.

        A crash before the message is deleted leaves both.
        """
        self.leases.let_go([held])
        copy = OutgoingMessage(held.delivery.body, held.delivery.attributes, delay=min(outcome.after, MAX_DELAY))
        try:
            (sent,) = held.queue.send([copy])
        except Exception as error:
            self.observe("settle_failed", held.delivery, error=error)
            return False
        if sent.ok:
            self.acks.add(held.queue, held.delivery)
            self._deferred(held, outcome)
        return sent.ok

    def _deferred(self, held: Held, outcome: Defer) -> None:
        self.counts.add("deferred")
        self.observe("deferred", held.delivery, after=outcome.after, label=outcome.label, about=outcome.about)

    def _reject(self, held: Held, outcome: Reject) -> bool:
        """Move the message to the dead letters; return False if it stayed."""
        self.leases.let_go([held])
        try:
            moved = self.dead_letters(held.queue, held.delivery, reason=outcome.reason, error=outcome.error)
        except (Exception, SystemExit) as error:
            self.observe("settle_failed", held.delivery, error=error)
            return False
        if moved:
            self._rejected(held, outcome)
        return moved

    def _reject_on_queue(self, held: Held, outcome: Retry) -> bool:
        try:
            (result,) = held.queue.reject([held.delivery], reason=HANDLER_FAILED, error=outcome.error)
        except PostroadError:
            return False
        if result.ok:
            self.leases.let_go([held])
            self._rejected(held, _as_reject(outcome))
        return result.ok

    def _rejected(self, held: Held, outcome: Reject) -> None:
        with tracing.dead_lettering(held.queue.name, held.delivery, held.delivery.message_id):
            pass
        self._note_failed("rejected", held, outcome, reason=outcome.reason)

    def _note_failed(self, what: str, held: Held, outcome: Retry | Reject, **fields: Any) -> None:
        """Count, log and tell the breaker that a handler failed."""
        self.counts.add(what)
        if outcome.label is None and self.breaker is not None:
            self.breaker.failed()
        self.observe(
            what,
            held.delivery,
            queue=held.queue.name,
            duration_ms=self.leases.handled_ms(held),
            label=outcome.label,
            about=outcome.about,
            error=None if outcome.error is None else legible(outcome.error),
            attempt=self.attempts.number(held.delivery),
            **fields,
        )

    def _note_released(self, helds: Sequence[Held], *, spared: Sequence[Held]) -> None:
        """Count and log messages that are about to be released; receives of spared ones are not attempts."""
        if helds:
            deliveries = [held.delivery for held in helds]
            self.attempts.spare(held.delivery for held in spared)
            self.counts.add("released", len(deliveries))
            self.observe("released", None, deliveries=deliveries)

    def _release(
        self, helds: Sequence[Held], *, after: float = 0.0, error: str | None = None, undo: bool = False
    ) -> None:
        """Release from last to first, so that no later message of a group comes before an earlier one.

        With `undo` the receive is undone if the queue can do that.
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


def _as_reject(outcome: Retry) -> Reject:
    return Reject(HANDLER_FAILED, outcome.error, after=outcome.after, about=outcome.about)
