"""What becomes of a message: the four outcomes that `decide` returns, and the dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

from postroad.clock import Clock
from postroad.errors import NotSupported
from postroad.queues import Delivery, OutgoingMessage, Queue, mark_dead


@dataclass(frozen=True, slots=True)
class Ack:
    """Delete the message: it is done.

    Args:
        label: What counters and log lines call it, such as `duplicate`; without one it was handled.
        about: Passed on to whoever observes the receiver.
    """

    _: KW_ONLY
    label: str | None = None
    about: object = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Let the message come again. After `max_receives` attempts it is rejected instead.

    Args:
        after: Seconds until it comes again; by default what `retry_delays` says for this attempt.
        error: Why it failed, for the log and the dead letter.
        label: What counters and log lines call it. A retry with a label is not a failure, and is never rejected.
        about: Passed on to whoever observes the receiver.
        max_attempts: After how many attempts it is rejected; by default the receiver's `max_receives`.
    """

    after: float | None = None
    error: str | None = None
    _: KW_ONLY
    label: str | None = None
    about: object = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Move the message to the dead letters now. Where there are none, it comes again like a `Retry`.

    Args:
        reason: A short word for the dead letter, such as `invalid`.
        error: What exactly was wrong.
        after: Seconds until it comes again where there are no dead letters; by default as for a `Retry`.
        label: What counters and log lines call it; without one the handler failed.
        about: Passed on to whoever observes the receiver.
    """

    reason: str
    error: str | None = None
    _: KW_ONLY
    after: float | None = None
    label: str | None = None
    about: object = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Let the message come again after so many seconds without counting this receive as an attempt.

    The queue's trait `defers_by` says how. The embedded engine takes the receive back. On a standard SQS queue a
    delayed copy takes the place of the message, which also forgets its earlier receives; after at most 900 seconds it
    comes again. An SQS FIFO queue allows neither: there it is a `Retry`.

    Args:
        after: Seconds until it comes again.
    """

    after: float


Outcome = Ack | Retry | Reject | Defer
Decide = Callable[[Delivery], "Outcome | Awaitable[Outcome]"]
"""Decides about one delivery."""
DecideTogether = Callable[[Sequence[Delivery]], "Sequence[Outcome] | Awaitable[Sequence[Outcome]]"]
"""Decides about several deliveries at once: one outcome for each, in the same order."""
ADecide = Callable[[Delivery], Awaitable[Outcome]]
"""Decides about one delivery on an event loop."""


@runtime_checkable
class DeadLetters(Protocol):
    """The dead letters of one queue."""

    def bury(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        """Move the message there; False when it stayed, because there are no dead letters or they took nothing."""
        ...


@dataclass(frozen=True, slots=True)
class OwnDeadLetters:
    """Those that the queue itself has."""

    def bury(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        try:
            (result,) = queue.reject([delivery], reason=reason, error=error)
        except NotSupported:
            return False
        return result.ok


@dataclass(frozen=True, slots=True)
class GivenDeadLetters:
    """A queue that the receiver was given: first sent there, then deleted here."""

    letters: Queue
    clock: Clock

    def bury(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        attributes = mark_dead(
            delivery.attributes,
            source=queue.name,
            receives=delivery.receive_count,
            error=error,
            at=self.clock.now(),
            reason=reason,
        )
        fifo = self.letters.name.endswith(".fifo")
        # The same burial, repeated after a crash, is recognised by its dedup id.
        dedup_id = f"{delivery.message_id}-{delivery.receive_count}" if fifo else None
        group = (delivery.group or delivery.message_id) if fifo else None
        (sent,) = self.letters.send([OutgoingMessage(delivery.body, attributes, group=group, dedup_id=dedup_id)])
        if sent.ok:
            # A failed deletion leaves a second copy, never none.
            queue.ack([delivery])
        return sent.ok


@dataclass(frozen=True, slots=True)
class NoDeadLetters:
    """There are none: what is rejected comes again."""

    def bury(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        return False


NO_DEAD_LETTERS = NoDeadLetters()
