"""Bodies above a queue's limit travel by reference: stored as a blob when sent, and whole again when received."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import msgspec

from postroad import errors
from postroad.blobs import MAX_BLOB_BYTES, BlobRef, Blobs, check_reference, reference
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.engine import in_transaction
from postroad.errors import PostroadError
from postroad.queues import port
from postroad.queues.port import AckResult, Delivery, OutgoingMessage, PeekedMessage, SendResult, as_movable
from postroad.queues.rules import MAX_ATTRIBUTES, check_batch, check_content, check_deliveries, check_text

PREFIX = "overflow/"
ATTRIBUTE = "PostroadBlob"
PRUNE_EVERY = 3_600.0
# The longest retention of a queue and then of its dead letters; a redrive starts the blob's time again.
KEEP_FOR = 2 * 1_209_600.0
_LONGEST_REFERENCE = 1_024
# How long a message waits if the store of its blob does not answer, or if nobody removes it from the queue.
_RETRY_AFTER = 30.0
_QUICK_RETRIES = 10
# After these errors nothing was sent; after any other the message may have been sent and needs its blob.
_SURELY_NOT_SENT = (
    errors.ConfigurationError,
    errors.HeldBack,
    errors.InvalidInput,
    errors.NotSupported,
    errors.QueueNotFound,
    errors.StorageFull,
    errors.TopicNotFound,
    errors.Unavailable,
)


class _Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    postroad_blob: BlobRef


def new_hex() -> str:
    """Return a name that cannot be guessed."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class Pruning:
    """Removes blobs whose messages are gone, at most once an hour. All queues and topics of a store share one."""

    blobs: Blobs
    clock: Clock
    _due: float | None = None
    _has_run: bool = False

    def run_when_due(self, *, stored: bool) -> None:
        """Prune when this process has stored its first blob, and an hour after the first send or the last time.

        Most processes store no blobs and leave this to those that do. A failure is left to the next time.
        """
        now = self.clock.monotonic()
        if self._due is None:
            self._due = now + PRUNE_EVERY
        if now < self._due and (self._has_run or not stored):
            return
        self._due, self._has_run = now + PRUNE_EVERY, True
        if in_transaction():
            # Every other writer waits for the caller's commit, and must not wait for this too.
            with suppress(RuntimeError):
                threading.Thread(target=self._run, name="postroad-prune", daemon=True).start()
        else:
            self._run()

    def _run(self) -> None:
        with suppress(PostroadError):
            self.blobs.prune(PREFIX, older_than=KEEP_FOR)


@dataclass(frozen=True, slots=True)
class References:
    """Packs and unpacks the bodies of one queue, topic or bus."""

    blobs: Blobs
    clock: Clock
    new_id: Callable[[], str]
    pruning: Pruning | None = None

    def send(
        self,
        messages: Sequence[OutgoingMessage],
        send: Callable[[Sequence[OutgoingMessage]], list[SendResult]],
        *,
        limit: int,
        by_content: bool = False,
    ) -> list[SendResult]:
        """Send the messages, those above the limit by reference, and leave no blob of a message that was not sent.

        With `by_content` a message without a dedup id is recognised by its own body, not by its reference.
        """
        check_batch(messages)
        if all(_surely_fits(message, limit) for message in messages):
            results = send(messages)
            if self.pruning is not None:
                self.pruning.run_when_due(stored=False)
            return results
        places = [""] if len(messages) == 1 else [f"messages[{index}]." for index in range(len(messages))]
        plans = [
            self._plan(message, where, limit=limit, by_content=by_content)
            for message, where in zip(messages, places, strict=True)
        ]
        stored: list[BlobRef] = []
        try:
            for _, ref, body in plans:
                if ref is not None:
                    stored.append(self.blobs.put(ref.key, body))
            results = send([packed for packed, _, _ in plans])
        except _SURELY_NOT_SENT:
            self._discard(stored)
            raise
        failed = [not result.ok and isinstance(result.error, _SURELY_NOT_SENT) for result in results]
        self._discard([ref for (_, ref, _), has_failed in zip(plans, failed, strict=True) if ref and has_failed])
        if self.pruning is not None:
            self.pruning.run_when_due(stored=bool(stored))
        return results

    def whole(self, body: bytes) -> bytes:
        """Return the body behind a reference, or raise the error that says why there is none."""
        return self.blobs.get(read_reference(body))

    def _plan(
        self, message: OutgoingMessage, where: str, *, limit: int, by_content: bool
    ) -> tuple[OutgoingMessage, BlobRef | None, bytes]:
        """Return what to send and what to store for it first; raise every error before anything is stored."""
        _refuse_huge(message.body, where)
        body = check_text(message.body, f"{where}body")
        try:
            check_content(message, where=where, limit=limit)
            fits = True
        except errors.MessageTooLarge:
            fits = False
        if ATTRIBUTE in message.attributes:
            field = f"{where}attributes.{ATTRIBUTE}"
            remedy = "Give the attribute another name."
            raise errors.InvalidMessage(f"{field}: this name is Postroad's own", field=field, remedy=remedy)
        if fits:
            return message, None, body
        _refuse_huge(body, where)
        if len(message.attributes) >= MAX_ATTRIBUTES:
            raise errors.MessageTooLarge(
                f"{where}body: must travel as a blob, which needs one of the {MAX_ATTRIBUTES} attribute places, "
                "and all are taken",
                field=f"{where}body",
                remedy="Send one attribute less, or a smaller body.",
            )
        ref = reference(f"{PREFIX}{self.clock.now():%Y%m%d}/{self.new_id()}", body)
        needs_id = by_content and message.dedup_id is None
        packed = msgspec.structs.replace(
            message,
            body=msgspec.json.encode(_Reference(ref)),
            attributes={**message.attributes, ATTRIBUTE: "1"},
            dedup_id=hashlib.sha256(body).hexdigest() if needs_id else message.dedup_id,
        )
        check_content(packed, where=where, limit=limit)
        return packed, ref, body

    def _discard(self, refs: Sequence[BlobRef]) -> None:
        for ref in refs:
            # What cannot be removed now is pruned later.
            with suppress(PostroadError):
                self.blobs.delete(ref)


def read_reference(body: bytes) -> BlobRef:
    """Return the reference in a body; refuse one that Postroad cannot have written before anything is read."""
    if len(body) > _LONGEST_REFERENCE:
        raise errors.InvalidMessage(f"body: {len(body)} bytes is too long for a reference to a blob", field="body")
    try:
        ref = msgspec.json.decode(body, type=_Reference).postroad_blob
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.InvalidMessage(f"body: is not a reference to a blob: {error}", field="body") from error
    if not check_reference(ref).key.startswith(PREFIX):
        raise errors.InvalidMessage(f"body: refers to the blob {ref.key!r}, outside {PREFIX!r}", field="body")
    return ref


def without_mark(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes that the sender gave."""
    return {name: value for name, value in attributes.items() if name != ATTRIBUTE}


def _surely_fits(message: OutgoingMessage, limit: int) -> bool:
    """Return whether the message fits at four bytes for each character and six for each attribute's type."""
    try:
        attributes = message.attributes
        if not attributes:
            return 4 * len(message.body) <= limit
        characters = len(message.body) + sum(map(len, attributes)) + sum(map(len, attributes.values()))
    except (AttributeError, TypeError):
        # The queue refuses it, naming the field.
        return True
    return 4 * characters + 6 * len(attributes) <= limit and ATTRIBUTE not in attributes


def _refuse_huge(body: object, where: str) -> None:
    if isinstance(body, str | bytes) and len(body) > MAX_BLOB_BYTES:
        raise errors.MessageTooLarge(
            f"{where}body: {len(body)} bytes is above {MAX_BLOB_BYTES}, the limit of a body that travels as a blob",
            field=f"{where}body",
            remedy="Split the data, or keep it in a store of its own and send its address.",
        )


class _Whole(Delivery, frozen=True):
    """A delivery with its whole body, and the one that the queue itself gave."""

    packed: Delivery


class OverflowingQueue:
    """The queue `inner`, with bodies up to the limit of blobs.

    Args:
        queue: The queue that carries the messages.
        blobs: Where large bodies are stored.
        clock: The clock that dates the blobs.
        new_id: Returns the last part of a blob's key.
        pruning: Shared by all queues and topics of one store; by default one of its own.
        limit: The bytes above which a body travels as a blob; by default the limit of the queue.
    """

    def __init__(
        self,
        queue: port.Queue,
        blobs: Blobs,
        *,
        clock: Clock = SYSTEM_CLOCK,
        new_id: Callable[[], str] = new_hex,
        pruning: Pruning | None = None,
        limit: int | None = None,
    ) -> None:
        self.inner = queue
        self.name = queue.name
        self._limit = limit
        self._blobs = blobs
        self._references = References(blobs, clock, new_id, pruning or Pruning(blobs, clock))

    @property
    def traits(self) -> port.QueueTraits:
        return dataclasses.replace(self.inner.traits, max_message_bytes=MAX_BLOB_BYTES)

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Store the messages; what is ok is durable, its blob included."""
        traits = self.inner.traits
        limit = min(traits.max_message_bytes, self._limit or traits.max_message_bytes)
        return self._references.send(messages, self.inner.send, limit=limit, by_content=traits.fifo)

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease up to `max_messages` with their whole bodies; one whose blob is lost is released or rejected."""
        deliveries = self.inner.receive(max_messages=max_messages, wait=wait, visibility=visibility)
        if not any(ATTRIBUTE in delivery.attributes for delivery in deliveries):
            return deliveries
        return self._whole(deliveries)

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Remove the messages; blobs stay for other copies until they are pruned."""
        return self.inner.ack(_packed(deliveries))

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        return self.inner.extend(_packed(deliveries), seconds=seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        return self.inner.release(_packed(deliveries), after=after, error=error)

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give the messages back without counting the receive, if the traits say that the queue can."""
        if self.inner.traits.defers_by != "undo":
            raise errors.NotSupported(f"queue {self.name!r} cannot take back a receive")
        return cast(port.Watchable, self.inner).undo(_packed(deliveries), after=after)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        return self.inner.reject(_packed(deliveries), reason=reason, error=error)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        """Return messages with their whole bodies; one whose blob is lost shows its reference."""
        return [self._peeked(message) for message in self.inner.peek(limit=limit, after=after, force=force)]

    def stats(self) -> port.QueueStats:
        return self.inner.stats()

    def move(
        self, decide: port.Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> port.MoveStep:
        """Move messages as they are stored; the blobs of those that move are kept as if they were new."""

        def keeping(message: PeekedMessage) -> port.Move | None:
            move = decide(message)
            if move is not None and ATTRIBUTE in message.attributes:
                # Before the move, so that no crash leaves a message whose blob is pruned too early.
                with suppress(PostroadError):
                    self._blobs.keep(read_reference(message.body))
            return move

        return as_movable(self.inner).move(keeping, cursor=cursor, limit=limit, only=only)

    def look(self, *, cursor: str | None = None, limit: int = 500) -> port.Looked:
        return as_movable(self.inner).look(cursor=cursor, limit=limit)

    def stop(self, cursor: str | None) -> None:
        as_movable(self.inner).stop(cursor)

    def whereabouts(self, ids: Collection[str]) -> Mapping[str, str] | None:
        return as_movable(self.inner).whereabouts(ids)

    def native(self) -> None:
        """Return None: a store that moves by itself would not keep the blobs."""

    def take_out(self, keep: port.Keep) -> int:
        """Pass the messages to `keep` with their whole bodies, and remove them afterwards."""
        return as_movable(self.inner).take_out(lambda messages: keep([self._peeked(each) for each in messages]))

    def end(self) -> str | None:
        return as_movable(self.inner).end()

    def purge(self) -> int:
        return as_movable(self.inner).purge()

    def _whole(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries with their bodies. On FIFO nothing overtakes a message that was released."""
        whole: list[Delivery] = []
        held: set[str | None] = set()
        for delivery in deliveries:
            if delivery.group in held:
                self.inner.release([delivery])
            elif ATTRIBUTE not in delivery.attributes:
                whole.append(delivery)
            else:
                try:
                    fields = {name: getattr(delivery, name) for name in Delivery.__struct_fields__}
                    fields["body"] = self._references.whole(delivery.body)
                    fields["attributes"] = without_mark(delivery.attributes)
                    whole.append(_Whole(**fields, packed=delivery))
                except PostroadError as error:
                    if not self._fail(delivery, error) and self.inner.traits.fifo:
                        held.add(delivery.group)
        return whole

    def _fail(self, delivery: Delivery, error: PostroadError) -> bool:
        """Reject the message or release it with the error; return whether its group may go on without it."""
        text = f"{type(error).__name__}: {error}"
        temporary = isinstance(error, errors.TransportError)
        # On FIFO it is rejected, so that the receives of those behind it in its group are not counted.
        if self.inner.traits.fifo and not temporary:
            with suppress(errors.NotSupported):
                (result,) = self.inner.reject([delivery], reason="the blob of its body cannot be read", error=text)
                if result.ok:
                    return True
        quick = not temporary and delivery.receive_count < _QUICK_RETRIES
        self.inner.release([delivery], after=0.0 if quick else _RETRY_AFTER, error=text)
        return False

    def _peeked(self, message: PeekedMessage) -> PeekedMessage:
        if ATTRIBUTE not in message.attributes:
            return message
        try:
            body = self._references.whole(message.body)
        except PostroadError:
            return message
        return msgspec.structs.replace(message, body=body, attributes=without_mark(message.attributes))


def _packed(deliveries: Sequence[Delivery]) -> list[Delivery]:
    if type(deliveries) is not list:
        check_deliveries(deliveries)
    return [delivery.packed if isinstance(delivery, _Whole) else delivery for delivery in deliveries]
