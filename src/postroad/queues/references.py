"""Bodies above a limit travel by reference: stored as a blob on the way out, whole again on the way in."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from postroad.blobs import MAX_BLOB_BYTES, BlobRef, Blobs, check_reference, reference
from postroad.clock import Clock
from postroad.errors import (
    ConfigurationError,
    HeldBack,
    InvalidInput,
    InvalidMessage,
    MessageTooLarge,
    NotSupported,
    PostroadError,
    QueueNotFound,
    StorageFull,
    TopicNotFound,
    Unavailable,
)
from postroad.queues.port import OutgoingMessage, SendResult
from postroad.queues.rules import MAX_ATTRIBUTES, check_batch, check_content, check_text

PREFIX = "overflow/"
ATTRIBUTE = "PostroadBlob"
PRUNE_EVERY = 3_600.0
# The longest retention of a queue and then of its dead letters; a redrive starts the blob's time anew.
KEEP_FOR = 2 * 1_209_600.0
_LONGEST_REFERENCE = 1_024
# After these nothing was sent; after any other failure the message may be on its way and needs its blob.
_SURELY_NOT_SENT = (
    ConfigurationError,
    HeldBack,
    InvalidInput,
    NotSupported,
    QueueNotFound,
    StorageFull,
    TopicNotFound,
    Unavailable,
)


class _Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    postroad_blob: BlobRef


def new_hex() -> str:
    """A name that nobody can guess."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class Pruning:
    """Removes blobs whose messages cannot be there any more, at most once an hour. Share one among all wrappers."""

    blobs: Blobs
    clock: Clock
    _due: float | None = None

    def run_when_due(self) -> None:
        """Prune if an hour has passed; a failure is left to the next time, since the messages are what matters."""
        now = self.clock.monotonic()
        if self._due is not None and now < self._due:
            return
        self._due = now + PRUNE_EVERY
        with suppress(PostroadError):
            self.blobs.prune(PREFIX, older_than=KEEP_FOR)


@dataclass(frozen=True, slots=True)
class References:
    """Packs and unpacks the bodies of one queue or topic."""

    blobs: Blobs
    clock: Clock
    new_id: Callable[[], str]

    def send(
        self,
        messages: Sequence[OutgoingMessage],
        send: Callable[[Sequence[OutgoingMessage]], list[SendResult]],
        *,
        limit: int,
        by_content: bool = False,
    ) -> list[SendResult]:
        """Send the messages, those above the limit by reference, leaving no blob of a message that surely was not sent.

        With `by_content` a message without a dedup id is recognised by its own body, not by its reference.
        """
        check_batch(messages)
        if all(_surely_fits(message, limit) for message in messages):
            return send(messages)
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
        failed = [ref for (_, ref, _), result in zip(plans, results, strict=True) if ref and _surely_failed(result)]
        self._discard(failed)
        return results

    def whole(self, body: bytes) -> bytes:
        """The body behind a reference, or the error that says why there is none."""
        return self.blobs.get(read_reference(body))

    def _plan(
        self, message: OutgoingMessage, where: str, *, limit: int, by_content: bool
    ) -> tuple[OutgoingMessage, BlobRef | None, bytes]:
        """What to send and what to store for it first; whatever is wrong is found before anything is stored."""
        _refuse_huge(message.body, where)
        body = check_text(message.body, f"{where}body")
        fits = _fits(message, where, limit)
        _refuse_own_attribute(message.attributes, where)
        if fits:
            return message, None, body
        _refuse_huge(body, where)
        _refuse_without_room(message, where)
        ref = reference(f"{PREFIX}{self.clock.now():%Y%m%d}/{self.new_id()}", body)
        packed = _packed(message, ref, body, by_content=by_content)
        check_content(packed, where=where, limit=limit)
        return packed, ref, body

    def _discard(self, refs: Sequence[BlobRef]) -> None:
        for ref in refs:
            # What cannot be removed now is pruned in time.
            with suppress(PostroadError):
                self.blobs.delete(ref)


def read_reference(body: bytes) -> BlobRef:
    """The reference in a body; one that we cannot have written is refused before anything is read."""
    if len(body) > _LONGEST_REFERENCE:
        raise InvalidMessage(f"body: {len(body)} bytes is too long for a reference to a blob", field="body")
    try:
        ref = msgspec.json.decode(body, type=_Reference).postroad_blob
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"body: is no reference to a blob: {error}", field="body") from error
    if not check_reference(ref).key.startswith(PREFIX):
        raise InvalidMessage(f"body: refers to the blob {ref.key!r}, outside {PREFIX!r}", field="body")
    return ref


def without_mark(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes that the sender gave."""
    return {name: value for name, value in attributes.items() if name != ATTRIBUTE}


def _packed(message: OutgoingMessage, ref: BlobRef, body: bytes, *, by_content: bool) -> OutgoingMessage:
    needs_id = by_content and message.dedup_id is None
    return msgspec.structs.replace(
        message,
        body=msgspec.json.encode(_Reference(ref)),
        attributes={**message.attributes, ATTRIBUTE: "1"},
        dedup_id=hashlib.sha256(body).hexdigest() if needs_id else message.dedup_id,
    )


def _surely_fits(message: OutgoingMessage, limit: int) -> bool:
    """Whether the size needs no counting: four bytes a character, and a word for each attribute's type."""
    try:
        attributes = message.attributes
        if not attributes:
            return 4 * len(message.body) <= limit
        characters = len(message.body) + sum(map(len, attributes)) + sum(map(len, attributes.values()))
    except (AttributeError, TypeError):
        # The queue refuses it, naming the field.
        return True
    return 4 * characters + 6 * len(attributes) <= limit and ATTRIBUTE not in attributes


def _fits(message: OutgoingMessage, where: str, limit: int) -> bool:
    try:
        check_content(message, where=where, limit=limit)
    except MessageTooLarge:
        return False
    return True


def _refuse_own_attribute(attributes: Mapping[str, str], where: str) -> None:
    if ATTRIBUTE in attributes:
        raise InvalidMessage(
            f"{where}attributes.{ATTRIBUTE}: this name is Postroad's own",
            field=f"{where}attributes.{ATTRIBUTE}",
            remedy="Give the attribute another name.",
        )


def _refuse_huge(body: object, where: str) -> None:
    if isinstance(body, str | bytes) and len(body) > MAX_BLOB_BYTES:
        raise MessageTooLarge(
            f"{where}body: {len(body)} bytes is above {MAX_BLOB_BYTES}, the limit of a body that travels as a blob",
            field=f"{where}body",
            remedy="Split the data, or keep it in a store of its own and send its address.",
        )


def _refuse_without_room(message: OutgoingMessage, where: str) -> None:
    if len(message.attributes) >= MAX_ATTRIBUTES:
        raise MessageTooLarge(
            f"{where}body: must travel as a blob, which needs one of the {MAX_ATTRIBUTES} attribute places, "
            "and all are taken",
            field=f"{where}body",
            remedy="Send one attribute less, or a smaller body.",
        )


def _surely_failed(result: SendResult) -> bool:
    return not result.ok and isinstance(result.error, _SURELY_NOT_SENT)
