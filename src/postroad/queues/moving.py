"""Moving messages between queues in steps that a crash cannot tear: the base of redrive and purge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from postroad.errors import NotSupported
from postroad.queues.port import PeekedMessage, Queue


class Move(msgspec.Struct, frozen=True):
    """Where one message goes, with which attributes. `to` is a queue's name on the same backend."""

    to: str
    attributes: dict[str, str]


class MoveStep(msgspec.Struct, frozen=True):
    """What one step did. `cursor` goes into the next step; None when the queue's end was reached."""

    cursor: str | None
    looked_at: int
    moved: tuple[tuple[str, str], ...] = ()
    """(message id, destination) of each message that moved."""
    in_flight: int = 0
    """Messages leased by somebody else, which were left alone."""


Decide = Callable[[PeekedMessage], Move | None]


@runtime_checkable
class Movable(Protocol):
    """What an adapter offers besides the queue's verbs, so that messages can be moved and purged."""

    def move(self, decide: Decide, *, cursor: str | None = None, limit: int = 500) -> MoveStep:
        """Look at up to `limit` messages behind `cursor` in sequence order and move those `decide` sends on.

        One atomic step on the embedded engine: a message is in exactly one of the two queues. On SQS it is send,
        then delete. Group and body are kept, the receive count starts at 0, the message keeps its id where it can.
        """
        ...

    def end(self) -> str | None:
        """The cursor behind the last message the queue holds now; None where messages have no order."""
        ...

    def purge(self) -> int:
        """Remove everything the queue holds, leased messages included; how many there were."""
        ...


def as_movable(queue: Queue) -> Movable:
    """The queue as one whose messages can be moved, or `NotSupported`."""
    if not isinstance(queue, Movable):
        raise NotSupported(f"queue {queue.name!r} can neither be redriven nor purged by this adapter")
    return queue


def purge(queue: Queue) -> int:
    """Remove everything the queue holds, leased messages included; how many there were."""
    return as_movable(queue).purge()
