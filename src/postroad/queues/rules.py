"""The settings of a queue and the limits of SQS, checked before anything is created or sent, on every adapter alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeGuard

from msgspec import Meta

from postroad import errors
from postroad.arguments import MAX_LIFE, check, check_settings, whole_number
from postroad.errors import ConfigurationError, InvalidMessage, InvalidName
from postroad.queues.port import Delivery, OutgoingMessage

MAX_MESSAGE_BYTES = 1_048_576
MAX_VISIBILITY = 43_200.0
MAX_RETENTION = 1_209_600
MAX_DELAY = 900.0
MAX_WAIT = 20.0
DEDUP_SECONDS = 300.0
MAX_ATTRIBUTES = 10
MAX_RECEIVE = 1_000
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

Note = Annotated[str, Meta(description="text", extra={"remedy": "Say it in words, such as str(error)."})]
_Visibility = Annotated[float, Meta(ge=0, le=MAX_VISIBILITY, description="a number of seconds from 0 to 43200")]
_Retention = Annotated[float, Meta(ge=60, le=MAX_RETENTION, description="a number of seconds from 60 to 1209600")]
_Delay = Annotated[float, Meta(ge=0, le=MAX_DELAY, description="a number of seconds from 0 to 900")]
_Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT, description="a number of seconds from 0 to 20")]
_Life = Annotated[float, Meta(ge=0.001, le=MAX_LIFE, description="a number of seconds from 0.001 to 315360000")]


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The settings of a queue. The defaults are those of SQS, except for `receive_wait` and `max_receives`.

    Raises:
        InvalidName: The name is not one of SQS, or its end `.fifo` does not agree with `fifo`.
        ConfigurationError: Another setting is out of range, or does not fit the kind of queue.

    Example:
        backend.create_queue(QueueSpec("jobs", dead_letter="jobs-dead", max_receives=5))
    """

    name: str
    """1 to 80 letters, digits, '-' or '_'; a FIFO queue's name ends with `.fifo`."""
    fifo: bool = False
    """Keep the order of messages within a group, and recognise repeats by their dedup id."""
    visibility: _Visibility = 30
    """Seconds a received message is hidden if the receiver does not say; longer than the handler usually takes."""
    retention: _Retention = 345_600
    """Seconds a message is kept if nobody acks it; four days by default, at most 14."""
    delay: _Delay = 0
    """Seconds until a new message can be received, at most 900."""
    receive_wait: _Wait = 20
    """Seconds that receivers wait for the first message by default, at most 20; longer waits cost fewer requests."""
    max_message_bytes: Annotated[int, Meta(ge=1_024, le=MAX_MESSAGE_BYTES)] = MAX_MESSAGE_BYTES
    """The largest body with its attributes; larger bodies travel as blobs if the backend has any."""
    dead_letter: str | None = None
    """The existing queue of the same kind that gets messages received more than `max_receives` times; None for none."""
    max_receives: Annotated[int, Meta(ge=1, le=1_000)] = 3
    """How often a message is received before it becomes a dead letter, at most 1,000."""
    content_dedup: bool = False
    """FIFO: use a hash of the body where a message has no dedup id."""
    dedup_scope: Literal["queue", "group"] = "queue"
    """FIFO: where dedup ids are compared."""
    redrive_allow: Literal["all", "none"] | tuple[str, ...] = "all"
    """Which queues may have this one as their dead-letter queue: all, none, or one to ten by name."""
    auto_delete_after: _Life | None = None
    """Seconds without a receive after which the queue is deleted; None, and always on SQS, for never."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_settings(self)
        if self.fifo is not self.name.endswith(".fifo"):
            remedy = "End the name of a FIFO queue, and of no other, with '.fifo'."
            raise InvalidName(f"queue name {self.name!r} and fifo={self.fifo} disagree", field="name", remedy=remedy)
        if self.dead_letter is not None:
            self._check_dead_letter(self.dead_letter)
        if not self.fifo and (self.content_dedup or self.dedup_scope != "queue"):
            field = "content_dedup" if self.content_dedup else "dedup_scope"
            raise ConfigurationError(f"{field}: only FIFO queues deduplicate", field=field)
        allow = self.redrive_allow
        if allow in ("all", "none"):
            return
        if not isinstance(allow, tuple) or not 1 <= len(allow) <= 10:
            text = f"redrive_allow: {allow!r} is not 'all', 'none' or one to ten queue names"
            raise ConfigurationError(text, field="redrive_allow")
        for name in allow:
            check_name(name, field="redrive_allow")

    def _check_dead_letter(self, name: str) -> None:
        check_name(name, field="dead_letter")
        if name == self.name:
            raise ConfigurationError("dead_letter: a queue cannot be its own dead-letter queue", field="dead_letter")
        if name.endswith(".fifo") is not self.fifo:
            raise ConfigurationError(
                f"dead_letter: {name!r} must be of the same kind as {self.name!r}: "
                "a FIFO queue has FIFO dead letters, a standard one standard",
                field="dead_letter",
            )

    def differences(self, other: QueueSpec) -> dict[str, tuple[Any, Any]]:
        """Return the settings that differ from `other`, as (this one's, the other's)."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return {name: (mine, theirs) for name, mine, theirs in pairs if mine != theirs}


def check_name(name: object, *, field: str = "name") -> str:
    """Refuse a queue name that SQS would refuse."""
    if not isinstance(name, str) or not 1 <= len(name) <= 80 or _NAME.fullmatch(name) is None:
        raise InvalidName(f"{field}: {name!r} is not a queue name", field=field)
    return name


def check_spec(spec: object) -> None:
    """Refuse what is not a `QueueSpec`, such as a name alone."""
    if not isinstance(spec, QueueSpec):
        text = f"spec: {type(spec).__name__} is not a QueueSpec"
        raise errors.InvalidInput(text, field="spec", remedy="Give QueueSpec(name); nothing was changed.")


def queue_missing(name: str) -> errors.QueueNotFound:
    return errors.QueueNotFound(f'queue "{name}" does not exist', field="name")


def dead_letter_missing(name: str) -> ConfigurationError:
    command = f"postroad queue create {name}{' --fifo' if name.endswith('.fifo') else ''}"
    remedy = f"Create the dead-letter queue first: `{command}`."
    return ConfigurationError(f'dead_letter: queue "{name}" does not exist', field="dead_letter", remedy=remedy)


def settings_differ(name: str, differences: dict[str, tuple[Any, Any]]) -> errors.QueueExists:
    shown = ", ".join(f"{field} is {there!r}, not {wanted!r}" for field, (there, wanted) in differences.items())
    return errors.QueueExists(f'queue "{name}" exists with other settings: {shown}', differences=differences)


def check_source_allowed(dead_letter: QueueSpec, source: str) -> None:
    """Refuse a source that the dead-letter queue does not accept."""
    allow = dead_letter.redrive_allow
    if allow == "none" or (isinstance(allow, tuple) and source not in allow):
        text = f"dead_letter: {dead_letter.name!r} does not accept dead letters from {source!r}"
        raise ConfigurationError(text, field="dead_letter")


def check_messages(spec: QueueSpec, messages: Sequence[OutgoingMessage], *, limit: int | None = None) -> list[bytes]:
    """Return the bodies as bytes, or refuse the whole batch naming the entry and the field."""
    check_batch(messages)
    try:
        return [check_message(spec, message, limit=limit) for message in messages]
    except InvalidMessage:
        if len(messages) == 1:
            raise
        # Only the error needs the names of the entries.
        places = (f"messages[{index}]." for index in range(len(messages)))
        return [
            check_message(spec, each, where=where, limit=limit) for each, where in zip(messages, places, strict=True)
        ]


def check_batch(messages: object) -> None:
    """Refuse what is not a list: the checks would exhaust an iterator, and nothing would be sent."""
    if type(messages) is not list and type(messages) is not tuple and not _is_sequence(messages):
        raise _not_a_message(messages, "messages")


def check_deliveries(deliveries: object) -> None:
    """Refuse what is not a list of deliveries, before any of them is settled."""
    remedy = "Give a list of what receive() returned; nothing was changed."
    if not _is_sequence(deliveries):
        raise _refusal("deliveries", f"{type(deliveries).__name__} is not a Delivery with its receipt", remedy)
    for index, each in enumerate(deliveries):
        if not isinstance(each, Delivery) or not isinstance(each.receipt, str):
            text = f"{type(each).__name__} is not a Delivery with its receipt"
            raise _refusal(f"deliveries[{index}]", text, remedy)


def check_message(spec: QueueSpec, message: OutgoingMessage, *, where: str = "", limit: int | None = None) -> bytes:
    """Return the body as bytes, or refuse the message naming the field."""
    if not isinstance(message, OutgoingMessage):
        raise _not_a_message(message, where.removesuffix(".") or "messages")
    body = check_content(message, where=where, limit=spec.max_message_bytes if limit is None else limit)
    if message.delay != 0:
        check(message.delay, _Delay, f"{where}delay", InvalidMessage)
        if spec.fifo:
            raise _refusal(f"{where}delay", "a FIFO queue delays by its own setting only, never per message")
    if message.group is not None:
        _check_id(message.group, f"{where}group")
    elif spec.fifo:
        raise _refusal(f"{where}group", "a FIFO queue needs one on every message")
    if message.dedup_id is not None:
        if not spec.fifo:
            raise _refusal(f"{where}dedup_id", "only FIFO queues deduplicate")
        _check_id(message.dedup_id, f"{where}dedup_id")
    elif spec.fifo and not spec.content_dedup:
        raise _refusal(f"{where}dedup_id", "a FIFO queue without content_dedup needs one on every message")
    return body


def _refusal(field: str, text: str, remedy: str | None = None) -> InvalidMessage:
    return InvalidMessage(f"{field}: {text}", field=field, remedy=remedy)


def _not_a_message(value: object, field: str) -> InvalidMessage:
    text = f"{type(value).__name__} is not an OutgoingMessage"
    return _refusal(field, text, "Send a list of OutgoingMessage(body, ...).")


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def check_content(message: OutgoingMessage, *, where: str = "", limit: int) -> bytes:
    """Return the body as bytes, or refuse body or attributes that SQS would refuse."""
    body = check_text(message.body, f"{where}body")
    size = len(body)
    # Most messages have no attributes; an empty value that is not a mapping, such as None, is refused.
    if message.attributes or type(message.attributes) is not dict:
        size += _check_attributes(message.attributes, f"{where}attributes")
    if size > limit:
        text = f"{where}body: {size} bytes with its attributes is above the limit of {limit}"
        raise errors.MessageTooLarge(text, field=f"{where}body")
    return body


def check_text(value: object, field: str) -> bytes:
    """Return the text as UTF-8, or refuse it if it is empty or has characters that SQS does not allow."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            raise _refusal(field, f"not UTF-8 text at byte {error.start}") from None
    else:
        raise _refusal(field, f"{type(value).__name__} is neither text nor bytes")
    if not text:
        raise _refusal(field, "is empty; at least one character is needed")
    # Printable text is allowed, and this test is faster than the search.
    if not text.isprintable() and (bad := _FORBIDDEN.search(text)) is not None:
        raise _refusal(field, f"character U+{ord(bad[0]):04X} at position {bad.start()} is not allowed by SQS")
    return value if isinstance(value, bytes) else text.encode()


def _check_attributes(attributes: Mapping[Any, Any], field: str) -> int:
    """Return the size of names, types and values in bytes."""
    if not isinstance(attributes, Mapping):
        raise _refusal(field, f"{type(attributes).__name__} is not a mapping")
    if len(attributes) > MAX_ATTRIBUTES:
        raise _refusal(field, f"{len(attributes)} attributes; at most {MAX_ATTRIBUTES} fit")
    size = 0
    for name, value in attributes.items():
        if not isinstance(name, str) or len(name) > 256 or _ATTRIBUTE_NAME.fullmatch(name) is None:
            raise _refusal(field, f"{name!r} is not an attribute name")
        if not isinstance(value, str):
            raise InvalidMessage(f"{field}.{name}: {type(value).__name__} is not text", field=f"{field}.{name}")
        # Most values are plain text, whose size is known without its bytes.
        plain = value and value.isascii() and value.isprintable()
        size += len(name) + len("String") + len(value if plain else check_text(value, f"{field}.{name}"))
    return size


def _check_id(value: object, field: str) -> None:
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise _refusal(field, f"{value!r} is not 1 to 128 printable ASCII characters without space")


def dedup_id(message: OutgoingMessage, body: bytes) -> str:
    """Return the id by which a FIFO queue recognises a repeat of the message."""
    return message.dedup_id if message.dedup_id is not None else hashlib.sha256(body).hexdigest()


def check_receive(max_messages: int, wait: float, visibility: float | None) -> None:
    """Refuse arguments of `receive` that are out of range."""
    # Only what looks wrong is checked in full, which takes longer than all else that a receive checks.
    if type(max_messages) is not int or not 1 <= max_messages <= MAX_RECEIVE:
        check(max_messages, whole_number(1, MAX_RECEIVE), "max_messages")
    if type(wait) is not float or not 0.0 <= wait <= MAX_WAIT:
        check(wait, _Wait, "wait")
    if visibility is not None:
        check(visibility, _Visibility, "visibility")
