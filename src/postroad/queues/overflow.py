"""A queue around a queue: bodies above its limit travel as blobs, without the caller noticing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec

from postroad.blobs import MAX_BLOB_BYTES, Blobs
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import NotSupported, PostroadError, TransportError
from postroad.queues.moves import Decide, Keep, Looked, Move, MoveStep, as_movable
from postroad.queues.port import (
    AckResult,
    Delivery,
    OutgoingMessage,
    PeekedMessage,
    Queue,
    QueueStats,
    QueueTraits,
    SendResult,
    Undoable,
)
from postroad.queues.references import ATTRIBUTE, Pruning, References, new_hex, read_reference, without_mark
from postroad.queues.rules import check_deliveries

# How long a message waits whose blobs' store does not answer, or which nobody takes out of the queue's way.
_RETRY_AFTER = 30.0
_QUICK_RETRIES = 10


class _Whole(Delivery, frozen=True):
    """A delivery with its whole body, and the one that the queue itself knows."""

    packed: Delivery


class OverflowingQueue:
    """The queue `inner`, taking bodies up to the limit of blobs. `pruning` is shared among queues of one store.

    `limit` lets bodies travel as blobs that the queue itself would still take.
    """

    def __init__(
        self,
        queue: Queue,
        blobs: Blobs,
        *,
        clock: Clock = SYSTEM_CLOCK,
        new_id: Callable[[], str] = new_hex,
        pruning: Pruning | None = None,
        limit: int | None = None,
    ) -> None:
        self.inner = queue
        self._limit = limit
        self._blobs = blobs
        self._references = References(blobs, clock, new_id)
        self._pruning = pruning or Pruning(blobs, clock)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def traits(self) -> QueueTraits:
        return dataclasses.replace(self.inner.traits, max_message_bytes=MAX_BLOB_BYTES)

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Store the messages; what is ok is durable, its blob included."""
        traits = self.inner.traits
        limit = min(traits.max_message_bytes, self._limit or traits.max_message_bytes)
        results = self._references.send(messages, self.inner.send, limit=limit, by_content=traits.deduplicates)
        self._pruning.run_when_due()
        return results

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease up to `max_messages` with their whole bodies. One whose blob is lost fails and is not returned."""
        deliveries = self.inner.receive(max_messages=max_messages, wait=wait, visibility=visibility)
        if not any(ATTRIBUTE in delivery.attributes for delivery in deliveries):
            return deliveries
        return self._whole(deliveries)

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Forget the messages; blobs stay for other copies until their time is over."""
        return self.inner.ack(_packed(deliveries))

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        """Keep the leases for `seconds` from now."""
        return self.inner.extend(_packed(deliveries), seconds=seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        """Give the messages back, to be received again after `after` seconds."""
        return self.inner.release(_packed(deliveries), after=after, error=error)

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give the messages back without spending a receive, where the traits say that the queue can."""
        if not isinstance(self.inner, Undoable):
            raise NotSupported(f"queue {self.name!r} cannot take back a receive")
        return self.inner.undo(_packed(deliveries), after=after)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        """Move the messages to the dead letters now, with the reason."""
        return self.inner.reject(_packed(deliveries), reason=reason, error=error)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        """Look at messages with their whole bodies; one whose blob is lost shows its reference."""
        return [self._peeked(message) for message in self.inner.peek(limit=limit, after=after, force=force)]

    def stats(self) -> QueueStats:
        """Count what the queue holds."""
        return self.inner.stats()

    def move(
        self, decide: Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        """Move messages as they are stored; the blobs of those that go on start their time anew."""

        def keeping(message: PeekedMessage) -> Move | None:
            move = decide(message)
            if move is not None and ATTRIBUTE in message.attributes:
                # Before the move, so that a crash in between cannot leave a message whose blob is pruned early.
                with suppress(PostroadError):
                    self._blobs.keep(read_reference(message.body))
            return move

        return as_movable(self.inner).move(keeping, cursor=cursor, limit=limit, only=only)

    def look(self, *, cursor: str | None = None, limit: int = 500) -> Looked:
        """See messages as they are stored."""
        return as_movable(self.inner).look(cursor=cursor, limit=limit)

    def stop(self, cursor: str | None) -> None:
        """End a walk before the queue's end."""
        as_movable(self.inner).stop(cursor)

    def whereabouts(self, ids: Collection[str]) -> Mapping[str, str] | None:
        """The queue of this store that each message is in."""
        return as_movable(self.inner).whereabouts(ids)

    def native(self) -> None:
        """None: a store that moves by itself would not start the time of blobs anew."""

    def take_out(self, keep: Keep) -> int:
        """Hand the messages to `keep` with their whole bodies, and remove them afterwards."""
        return as_movable(self.inner).take_out(lambda messages: keep([self._peeked(each) for each in messages]))

    def end(self) -> str | None:
        """The cursor behind the last message the queue holds now; None where messages have no order."""
        return as_movable(self.inner).end()

    def purge(self) -> int:
        """Remove everything the queue holds, leased messages included; how many there were."""
        return as_movable(self.inner).purge()

    def _whole(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """The deliveries with their bodies. On FIFO nothing overtakes a message that was given back."""
        whole: list[Delivery] = []
        held: set[str | None] = set()
        for delivery in deliveries:
            if delivery.group in held:
                self.inner.release([delivery])
            elif ATTRIBUTE not in delivery.attributes:
                whole.append(delivery)
            else:
                try:
                    whole.append(_unpacked(delivery, self._references.whole(delivery.body)))
                except PostroadError as error:
                    if not self._fail(delivery, error) and self.inner.traits.ordered:
                        held.add(delivery.group)
        return whole

    def _fail(self, delivery: Delivery, error: PostroadError) -> bool:
        """Give the message back with the error; says whether its group may go on without it."""
        text = f"{type(error).__name__}: {error}"
        passing = isinstance(error, TransportError)
        if self.inner.traits.ordered and not passing and self._reject(delivery, text):
            return True
        quick = not passing and delivery.receive_count < _QUICK_RETRIES
        self.inner.release([delivery], after=0.0 if quick else _RETRY_AFTER, error=text)
        return False

    def _reject(self, delivery: Delivery, error: str) -> bool:
        """Whether the message is with the dead letters: messages of its group behind it must not be counted along."""
        try:
            (result,) = self.inner.reject([delivery], reason="the blob of its body cannot be read", error=error)
        except NotSupported:
            return False
        return result.ok

    def _peeked(self, message: PeekedMessage) -> PeekedMessage:
        if ATTRIBUTE not in message.attributes:
            return message
        try:
            body = self._references.whole(message.body)
        except PostroadError:
            return message
        return msgspec.structs.replace(message, body=body, attributes=without_mark(message.attributes))


def _unpacked(delivery: Delivery, body: bytes) -> Delivery:
    fields = {name: getattr(delivery, name) for name in Delivery.__struct_fields__}
    return _Whole(**{**fields, "body": body, "attributes": without_mark(delivery.attributes)}, packed=delivery)


def _packed(deliveries: Sequence[Delivery]) -> list[Delivery]:
    if type(deliveries) is not list:
        check_deliveries(deliveries)
    return [delivery.packed if isinstance(delivery, _Whole) else delivery for delivery in deliveries]
