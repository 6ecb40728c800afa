"""Dead letters: where a receiver puts what nobody can handle, with the reason."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from postroad.clock import Clock
from postroad.errors import NotSupported
from postroad.queues.markers import mark_dead
from postroad.queues.port import Delivery, OutgoingMessage, Queue


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


def describe(error: BaseException) -> str:
    """The error in one line, with the place where it was raised: `ValueError: no such order [orders.py:place]`."""
    frames = list(traceback.walk_tb(error.__traceback__))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not frames:
        return text
    code = frames[-1][0].f_code
    # The name alone: the path differs from machine to machine, and the same failure would be two.
    return f"{text} [{Path(code.co_filename).name}:{code.co_name}]"
