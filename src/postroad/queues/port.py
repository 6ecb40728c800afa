"""The queue: what it takes, what it gives, and the eight verbs every adapter has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import msgspec

from postroad.errors import QueueNotFound
from postroad.queues.spec import QueueSpec


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to send. `group` and `dedup_id` belong to FIFO queues."""

    body: bytes | str
    attributes: Mapping[str, str] = {}
    group: str | None = None
    dedup_id: str | None = None
    delay: float = 0.0


class SendResult(msgspec.Struct, frozen=True):
    """What became of one message of a batch. A duplicate is ok and has the first one's id."""

    ok: bool
    message_id: str | None = None
    sequence: int | None = None
    error: Exception | None = None
    receivers: int | None = None
    """How many queues got a copy of a published message; None where the transport cannot tell, and for queues."""


class AckResult(msgspec.Struct, frozen=True):
    """Whether one ack, extension, release or rejection took effect."""

    ok: bool
    error: Exception | None = None


class Delivery(msgspec.Struct, frozen=True):
    """A message leased to this receiver until its visibility ends."""

    message_id: str
    body: bytes
    attributes: Mapping[str, str]
    group: str | None
    receipt: str
    receive_count: int
    sent_at: datetime
    first_received_at: datetime
    sequence: int | None


MessageState = Literal["visible", "in_flight", "delayed"]


class PeekedMessage(msgspec.Struct, frozen=True):
    """A message seen without touching it."""

    message_id: str
    body: bytes
    attributes: Mapping[str, str]
    group: str | None
    receive_count: int
    sent_at: datetime
    sequence: int | None
    state: MessageState


class QueueStats(msgspec.Struct, frozen=True):
    """How much a queue holds. None where the adapter cannot tell; approximate on SQS."""

    visible: int
    in_flight: int
    delayed: int
    oldest_age_seconds: float | None
    expired: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTraits:
    """What a queue promises; code above asks these and never which adapter it has."""

    fifo: bool
    durable: bool
    """An acknowledged send survives the end of the process."""
    exclusive: bool
    """A message is with one receiver at a time, always; False: nearly always."""
    peeks_clean: bool
    """Peeking changes nothing."""
    tells_stale_acks: bool
    """A late ack on a standard queue says that it was late."""
    atomic_reject: bool
    """Rejecting is one step that keeps the message's id."""
    keeps_release_error: bool
    """The error given to `release` is found in the dead letter."""
    counts_expired: bool
    """`stats` knows the age of the oldest message and how many expired."""
    auto_deletes: bool
    """`auto_delete_after` is obeyed."""
    max_message_bytes: int
    """The largest body with its attributes."""
    visibility: float = 30.0
    """How long a received message hides when its receiver does not say."""
    max_receives: int | None = None
    """After how many receives a message becomes a dead letter; None where there are no dead letters."""
    short_waits: bool = False
    """Waiting in `receive` costs nothing, so that one long wait may be made of short ones."""
    defers_by: Literal["undo", "copy", "retry"] = "retry"
    """How a message is put off without counting a failure: its receive is taken back (the queue is `Undoable`), a
    delayed copy takes its place, or not at all: it is released, and the receive counts."""

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
        """Store the messages; what is ok is durable. A message that breaks a limit refuses the whole call."""
        ...

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease up to `max_messages`, waiting up to `wait` seconds for the first one."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Forget the messages. Acking a stale receipt changes nothing."""
        ...

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        """Keep the leases for `seconds` from now."""
        ...

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        """Give the messages back, to be received again after `after` seconds."""
        ...

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        """Move the messages to the dead letters now, with the reason."""
        ...

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        """Look at messages in order, starting behind the message id `after`, without leasing them."""
        ...

    def stats(self) -> QueueStats:
        """Count what the queue holds."""
        ...


@runtime_checkable
class Undoable(Protocol):
    """A queue that takes messages back without counting the receive."""

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give the messages back as if they had not been received, to be received after `after` seconds."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A queue that says when to receive: nobody has to wait inside it, and one thread serves thousands of queues."""

    def watch(self, rung: Callable[[bool], None]) -> AbstractContextManager[object]:
        """For the time of a block call `rung`, on any thread: True when the queue changed, False when it may have."""
        ...

    def due_seconds(self) -> float | None:
        """How long until a receive may find something: 0 for now, None for not before `rung` is called."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """A queue as it is in its store. `in_clear` says that the store keeps its messages unencrypted, where it tells."""

    spec: QueueSpec
    stats: QueueStats
    in_clear: bool = False


class QueueStore(Protocol):
    """Makes, finds and removes queues."""

    def create_queue(self, spec: QueueSpec) -> Queue: ...
    def update_queue(self, spec: QueueSpec) -> Queue: ...
    def delete_queue(self, name: str) -> None: ...
    def queue(self, name: str) -> Queue: ...
    def queue_spec(self, name: str) -> QueueSpec: ...
    def queues(self) -> list[str]: ...


class ListedQueues(QueueStore, Protocol):
    """A store that tells of many queues at once."""

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Look at these queues, by default at all, in the order of their names; one that is gone is left out."""
        ...

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have this one as their dead-letter queue, sorted."""
        ...


def overviews_one_by_one(store: QueueStore, names: Iterable[str] | None) -> list[QueueOverview]:
    """The overviews of a store where asking costs nothing."""
    found = []
    for name in store.queues() if names is None else names:
        with suppress(QueueNotFound):
            found.append(QueueOverview(spec=store.queue_spec(name), stats=store.queue(name).stats()))
    return found


def sources_one_by_one(store: QueueStore, dead_letters: str) -> list[str]:
    """The sources of a dead-letter queue in a store where asking costs nothing."""
    return [name for name in store.queues() if store.queue_spec(name).dead_letter == dead_letters]
