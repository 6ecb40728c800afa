"""Dead letters: where a receiver puts what nobody can handle, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from postroad.clock import Clock
from postroad.errors import NotSupported
from postroad.queues import Delivery, OutgoingMessage, Queue
from postroad.queues.markers import mark_dead


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
