"""Moving messages between queues in steps that a crash cannot tear: the base of redrive and purge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    failed: int = 0
    """Messages that were to move, and that the destination did not take."""


class Looked(msgspec.Struct, frozen=True):
    """Some messages of a walk that moves none, perhaps without their bodies. `cursor` leads on; None at the end."""

    messages: tuple[PeekedMessage, ...]
    cursor: str | None
    in_flight: int = 0
    """Messages leased by somebody else that are not among these."""


class MoveTask(msgspec.Struct, frozen=True):
    """One of the store's own moves, as the store tells it; the handle only while it runs."""

    task_handle: str | None
    status: str
    moved: int
    to_move: int | None


class NativeMoves(Protocol):
    """Moving that the store does by itself: the whole queue, unmarked."""

    def start(self, to: str, *, per_second: int | None) -> str:
        """Begin to move everything to this queue; its handle. `RedriveRunning` while another one runs.

        `NotSupported` when the store has no such call, or has it not for these two queues.
        """
        ...

    def tasks(self) -> list[MoveTask]:
        """The moves out of this queue that the store remembers, the newest first."""
        ...


Decide = Callable[[PeekedMessage], Move | None]
Keep = Callable[[Sequence[PeekedMessage]], None]


@runtime_checkable
class Movable(Protocol):
    """What an adapter offers besides the queue's verbs, so that messages can be moved and purged."""

    def move(
        self, decide: Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        """Look at up to `limit` messages behind `cursor` in sequence order and move those `decide` sends on.

        With `only`, look at the messages of these sequences instead, as far as they are there.

        One atomic step on the embedded engine: a message is in exactly one of the two queues. On SQS it is send,
        then delete. Group and body are kept, the receive count starts at 0, the message keeps its id where it can.
        """
        ...

    def look(self, *, cursor: str | None = None, limit: int = 500) -> Looked:
        """See up to `limit` messages behind `cursor` in sequence order; clean where peeking is."""
        ...

    def stop(self, cursor: str | None) -> None:
        """End a walk before the queue's end: what it held out of its own way is there for others again."""
        ...

    def end(self) -> str | None:
        """The cursor behind the last message the queue holds now; None where messages have no order."""
        ...

    def whereabouts(self, ids: Collection[str]) -> Mapping[str, str] | None:
        """The queue of this store that each message is in; settled ones are missing. None where nobody can tell."""
        ...

    def native(self) -> NativeMoves | None:
        """The store's own moving, where it has one."""
        ...

    def take_out(self, keep: Keep) -> int:
        """Hand what the queue holds now to `keep`, in parts, and remove each part once `keep` has stored it."""
        ...

    def purge(self) -> int:
        """Remove everything the queue holds, leased messages included; how many there were."""
        ...


def as_movable(queue: Queue) -> Movable:
    """The queue as one whose messages can be moved, or `NotSupported`."""
    if not isinstance(queue, Movable):
        raise NotSupported(f"queue {queue.name!r} can neither be redriven nor purged by this adapter")
    return queue


def purge(queue: Queue, keep: Keep | None = None) -> int:
    """Remove everything the queue holds; how many there were. With `keep`, only what it has stored before."""
    movable = as_movable(queue)
    return movable.purge() if keep is None else movable.take_out(keep)
