"""The queue: its messages, the eight verbs every adapter has, and what an adapter offers so that messages can move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from postroad.errors import NotSupported

if TYPE_CHECKING:
    from postroad.queues.rules import QueueSpec
    from postroad.queues.sqs.moves import MoveTasks


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to send; it is checked when it is sent.

    Args:
        body: Text, or UTF-8 bytes, of at least one character.
        attributes: Up to ten texts by name, which travel beside the body; topics filter by them.
        group: The FIFO group whose order is kept; required on FIFO queues.
        dedup_id: FIFO: a repeat of the id within five minutes is recognised; required without `content_dedup`.
        delay: Seconds until it can be received, 0 to 900; not on FIFO queues, which delay by their own setting.

    Example:
        queue.send([OutgoingMessage("hello", {"size": "large"})])
    """

    body: bytes | str
    attributes: Mapping[str, str] = {}
    group: str | None = None
    dedup_id: str | None = None
    delay: float = 0.0


class SendResult(msgspec.Struct, frozen=True):
    """The outcome for one message of a batch. A duplicate is ok and has the first one's id.

    Attributes:
        ok: Whether it is stored.
        message_id: Its id.
        sequence: Grows in the order of sending; None on standard queues of SQS.
        error: Why it is not stored.
    """

    ok: bool
    message_id: str | None = None
    sequence: int | None = None
    error: Exception | None = None
    receivers: int | None = None
    """How many queues got a copy of a published message; None for queues, and for topics that cannot know."""


class AckResult(msgspec.Struct, frozen=True):
    """Whether one ack, extension, release or rejection took effect.

    Attributes:
        ok: Whether it took effect.
        error: Why not.
    """

    ok: bool
    error: Exception | None = None


class Delivery(msgspec.Struct, frozen=True):
    """A message leased to this receiver until its visibility ends.

    Attributes:
        message_id: The id, the same at each delivery.
        body: The bytes that were sent.
        attributes: Names and values beside the body.
        group: The FIFO group, if any.
        sent_at: When it was sent.
        first_received_at: When it was first received.
    """

    message_id: str
    body: bytes
    attributes: Mapping[str, str]
    group: str | None
    receipt: str
    """The proof of this lease, which ack, extend, release and reject need."""
    receive_count: int
    """How often the message was received, this time included."""
    sent_at: datetime
    first_received_at: datetime
    sequence: int | None
    """Grows in the order of sending; None on standard queues of SQS."""


MessageState = Literal["visible", "in_flight", "delayed"]


class PeekedMessage(msgspec.Struct, frozen=True):
    """A message that was read without leasing it.

    Attributes:
        message_id: The id.
        body: The bytes that were sent.
        attributes: Names and values beside the body.
        group: The FIFO group, if any.
        receive_count: How often it was received.
        sent_at: When it was sent.
        sequence: Grows in the order of sending.
        state: Whether it is visible, in flight or delayed.
    """

    message_id: str
    body: bytes
    attributes: Mapping[str, str]
    group: str | None
    receive_count: int
    sent_at: datetime
    sequence: int | None
    state: MessageState


class QueueStats(msgspec.Struct, frozen=True):
    """How much a queue holds: approximate on SQS, and None for what an adapter does not know.

    Attributes:
        visible: Messages that can be received.
        in_flight: Messages that are leased.
        delayed: Messages that are received later.
        oldest_age_seconds: The age of the oldest message that can be received.
        expired: Messages that were removed because they were older than the retention.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_age_seconds: float | None
    expired: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTraits:
    """What a queue promises; code above asks for these and never for the adapter.

    Attributes:
        fifo: Whether messages of a group stay in order.
    """

    fifo: bool
    durable: bool
    """An acknowledged send survives the end of the process."""
    exclusive: bool
    """A message is always with one receiver at a time; False: nearly always."""
    peeks_clean: bool
    """Peeking changes nothing."""
    tells_stale_acks: bool
    """A late ack on a standard queue returns that it was late."""
    atomic_reject: bool
    """Rejecting is one step that keeps the message's id."""
    keeps_release_error: bool
    """The dead letter holds the error given to `release`."""
    counts_expired: bool
    """`stats` returns the age of the oldest message and how many expired."""
    auto_deletes: bool
    """`auto_delete_after` is obeyed."""
    max_message_bytes: int
    """The largest body with its attributes."""
    visibility: float = 30.0
    """Seconds a received message is hidden if its receiver does not say."""
    max_receives: int | None = None
    """How often a message is received before it becomes a dead letter; None without a dead-letter queue."""
    short_waits: bool = False
    """Waiting in `receive` costs nothing, so that one long wait may be made of short ones."""
    defers_by: Literal["undo", "copy", "retry"] = "retry"
    """How a message is deferred without counting a failure: "undo" takes its receive back, "copy" sends a delayed copy
    in its place; with "retry" it is released, and the receive counts."""

    @property
    def ordered(self) -> bool:
        """Order holds within a group."""
        return self.fifo

    @property
    def deduplicates(self) -> bool:
        """A repeated dedup id within five minutes is recognised."""
        return self.fifo


@runtime_checkable
class Queue(Protocol):
    """A durable queue with leases. Every rule of `QueueConformance` holds unless the traits say otherwise."""

    @property
    def name(self) -> str: ...
    @property
    def traits(self) -> QueueTraits: ...

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Store `messages`; what is ok is durable. One message that breaks a limit refuses the whole call."""
        ...

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease messages: nobody else receives them until their visibility ends.

        Args:
            max_messages: The most messages to return, 1 to 1,000.
            wait: Seconds to wait for the first message, 0 to 20.
            visibility: Seconds until unsettled messages come back, up to 43,200; None for the queue's setting.
        """
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Remove the messages of `deliveries`. Acking a stale receipt changes nothing."""
        ...

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        """Keep the leases of `deliveries` for `seconds` from now."""
        ...

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        """Give `deliveries` back, to be received again after `after` seconds, up to 43,200.

        `error` says why; where the traits say so, the dead letter will hold it.
        """
        ...

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        """Move `deliveries` to the dead letters now, with `reason` (a word) and `error` (the text of the cause)."""
        ...

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        """Return up to `limit` messages behind the message id `after` without leasing them.

        On SQS this counts as a receive, so that a queue with dead letters needs `force`.
        """
        ...

    def stats(self) -> QueueStats:
        """Count what the queue holds."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A queue that takes back receives and says when to receive, so that one thread serves thousands of queues."""

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give `deliveries` back as if they had not been received, to be received after `after` seconds."""
        ...

    def watch(self, wake: Callable[[bool], None]) -> AbstractContextManager[object]:
        """During a block, call `wake` on any thread: True when the queue changed, False when it may have changed."""
        ...

    def due_seconds(self) -> float | None:
        """Return the seconds until a receive may find something: 0 for now, None for not before `wake` is called."""
        ...


class QueueCounters(msgspec.Struct, frozen=True):
    """How many messages of a queue were sent, received and so on since it was created, in all processes."""

    sent: int
    received: int
    acked: int
    retried: int
    dead: int
    redriven: int
    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """A queue's settings and contents.

    Attributes:
        spec: Its settings.
        stats: What it holds.
        in_clear: Whether the store says that it keeps the messages unencrypted.
    """

    spec: QueueSpec
    stats: QueueStats
    in_clear: bool = False
    counters: QueueCounters | None = None
    """What happened on it; None where the store does not count."""


class QueueStore(Protocol):
    """Creates, finds and removes queues."""

    def create_queue(self, spec: QueueSpec) -> Queue: ...
    def update_queue(self, spec: QueueSpec) -> Queue: ...
    def delete_queue(self, name: str) -> None: ...
    def queue(self, name: str) -> Queue: ...
    def queue_spec(self, name: str) -> QueueSpec: ...
    def queues(self) -> list[str]: ...

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Return these queues, by default all, in the order of their names; queues that are gone are left out."""
        ...

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have this one as their dead-letter queue, sorted."""
        ...


@runtime_checkable
class CountingStore(Protocol):
    """A store of queues that counts what happens on them, and finds some of their names without reading all."""

    def names(self, *, prefix: str, after: str, limit: int) -> list[str]: ...

    def census(self) -> tuple[list[QueueOverview], QueueCounters]:
        """Return all queues as `overviews` does, and what had happened on those that were deleted since."""
        ...


class Settled(msgspec.Struct, frozen=True):
    """One thing that happened to a message: acked, failed, released, lease_expired, dead, redriven, expired, purged."""

    what: str
    at: datetime
    queue: str | None
    """None if the queue was deleted since."""
    receives: int
    sent_at: datetime
    first_received_at: datetime | None
    detail: str | None


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is, and what it waits for."""

    queue: str
    message: PeekedMessage
    first_received_at: datetime | None
    due_seconds: float
    """Until when its lease or its delay lasts; 0 if it can be received."""
    error: str | None
    """Why it was released last."""
    head: str | None = None
    """The message of its group that has to be settled before it."""
    lease_ended_at: datetime | None = None
    """When its last lease ended unsettled; None if it is leased now, was released, or was never received."""


@runtime_checkable
class MessageHistory(Protocol):
    """A store of queues that knows where its messages are and what happened to them."""

    def located(self, message_id: str) -> Located | None:
        """Return where the message is; None if it was settled, or is not of this store."""
        ...

    def settled(self, message_id: str) -> list[Settled]:
        """Return what happened to a message, oldest first, as far back as is known."""
        ...

    def traceback(self, message_id: str) -> list[str]: ...

    def messages_of(self, event_id: str) -> list[str]:
        """Return the ids of the messages that carry, or carried, the event."""
        ...

    def caused_by(self, event_id: str) -> list[str]:
        """Return the ids of the events that the event caused, as far as their messages are still stored."""
        ...


class Move(msgspec.Struct, frozen=True):
    """Where one message goes, and with which attributes.

    Attributes:
        to: The name of a queue on the same backend.
        attributes: Its attributes from now on.
    """

    to: str
    attributes: dict[str, str]


class MoveStep(msgspec.Struct, frozen=True):
    """What one step did.

    Attributes:
        cursor: Pass it to the next step; None at the end of the queue.
        looked_at: How many messages were read.
    """

    cursor: str | None
    looked_at: int
    moved: tuple[tuple[str, str], ...] = ()
    """(message id, destination) of each message that moved."""
    in_flight: int = 0
    """Messages leased by others, which were left alone."""
    failed: int = 0
    """Messages that should have moved and that the destination did not accept."""


class Looked(msgspec.Struct, frozen=True):
    """A part of a queue.

    Attributes:
        messages: Some messages, perhaps without their bodies.
        cursor: Pass it to look at the next part; None at the end of the queue.
    """

    messages: tuple[PeekedMessage, ...]
    cursor: str | None
    in_flight: int = 0
    """Messages leased by others that are not among these."""


class MoveTask(msgspec.Struct, frozen=True):
    """One of the store's own moves, as the store reports it; it has a handle only while it runs.

    Attributes:
        task_handle: What identifies it.
        status: Its status, in SQS's words.
        moved: How many messages have moved.
        to_move: How many there are to move.
    """

    task_handle: str | None
    status: str
    moved: int
    to_move: int | None


Decide = Callable[[PeekedMessage], Move | None]
Keep = Callable[[Sequence[PeekedMessage]], None]


@runtime_checkable
class Movable(Protocol):
    """What an adapter offers besides the queue's verbs, so that messages can be moved and purged."""

    def move(
        self, decide: Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        """Read up to `limit` messages behind `cursor`, or those of the sequences `only`, and move what `decide` picks.

        One atomic step on the embedded engine: a message is in exactly one of the two queues. On SQS it is send,
        then delete. Group and body are kept, the receive count starts at 0, the message keeps its id where it can.
        """
        ...

    def look(self, *, cursor: str | None = None, limit: int = 500) -> Looked:
        """Return up to `limit` messages behind `cursor` in sequence order; it changes what peeking changes."""
        ...

    def stop(self, cursor: str | None) -> None:
        """End the walk at `cursor` before the queue's end, and release what it held."""
        ...

    def end(self) -> str | None:
        """Return the cursor behind the last message the queue holds now; None where messages have no order."""
        ...

    def whereabouts(self, ids: Collection[str]) -> Mapping[str, str] | None:
        """Return the queue that each of `ids` is in, settled ones left out; None where the store cannot know."""
        ...

    def native(self) -> MoveTasks | None:
        """Return the store's own moves; None where it has none."""
        ...

    def take_out(self, keep: Keep) -> int:
        """Pass what the queue holds now to `keep`, in parts, and remove each part once `keep` has stored it."""
        ...

    def purge(self) -> int:
        """Remove everything the queue holds, leased messages included; return how many there were."""
        ...


def as_movable(queue: Queue) -> Movable:
    """Return the queue as one whose messages can be moved, or raise `NotSupported`."""
    if not isinstance(queue, Movable):
        raise NotSupported(f"queue {queue.name!r} can neither be redriven nor purged by this adapter")
    return queue


def purge(queue: Queue, keep: Keep | None = None) -> int:
    """Remove everything a queue holds, leased messages included, and return how many messages there were.

    Args:
        queue: The queue to empty.
        keep: Called with parts of the messages; each part is removed after it returned. None keeps nothing.

    Raises:
        NotSupported: The queue's adapter cannot purge.
    """
    movable = as_movable(queue)
    return movable.purge() if keep is None else movable.take_out(keep)
