"""The limits of SQS, checked before anything is sent, on every adapter alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeGuard

from msgspec import Meta

from postroad.arguments import check, seconds_between, whole_number
from postroad.errors import InvalidMessage, MessageTooLarge
from postroad.queues.port import Delivery, OutgoingMessage
from postroad.queues.spec import MAX_DELAY, MAX_VISIBILITY, MAX_WAIT, QueueSpec

DEDUP_SECONDS = 300.0
MAX_ATTRIBUTES = 10
MAX_RECEIVE = 1_000
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

Note = Annotated[str, Meta(description="text", extra={"remedy": "Say it in words, such as str(error)."})]


def check_messages(spec: QueueSpec, messages: Sequence[OutgoingMessage], *, limit: int | None = None) -> list[bytes]:
    """Return the bodies as bytes, or refuse the whole batch naming the entry and the field."""
    check_batch(messages)
    try:
        return [check_message(spec, message, limit=limit) for message in messages]
    except InvalidMessage:
        if len(messages) == 1:
            raise
        # Only a refusal needs the names of the entries.
        places = (f"messages[{index}]." for index in range(len(messages)))
        return [
            check_message(spec, each, where=where, limit=limit) for each, where in zip(messages, places, strict=True)
        ]


def check_batch(messages: object) -> None:
    """Refuse what is no list: the checks would use an iterator up, and nothing of it would be sent."""
    if type(messages) is not list and type(messages) is not tuple and not _is_sequence(messages):
        raise _not_a_message(messages, "")


def check_deliveries(deliveries: object) -> None:
    """Refuse what is no list of deliveries, before any of them is settled."""
    if not _is_sequence(deliveries):
        raise _not_a_delivery(deliveries, "deliveries")
    for index, each in enumerate(deliveries):
        if not isinstance(each, Delivery) or not isinstance(each.receipt, str):
            raise _not_a_delivery(each, f"deliveries[{index}]")


def check_message(spec: QueueSpec, message: OutgoingMessage, *, where: str = "", limit: int | None = None) -> bytes:
    """Return the body as bytes, or refuse the message naming the field."""
    if not isinstance(message, OutgoingMessage):
        raise _not_a_message(message, where)
    body = check_content(message, where=where, limit=spec.max_message_bytes if limit is None else limit)
    if message.delay != 0:
        _check_delay(spec, message.delay, where)
    if spec.fifo:
        _check_fifo(spec, message, where)
    elif message.group is not None or message.dedup_id is not None:
        _check_standard(message, where)
    return body


def _not_a_message(value: object, where: str) -> InvalidMessage:
    field = where.removesuffix(".") or "messages"
    return InvalidMessage(
        f"{field}: {type(value).__name__} is not an OutgoingMessage",
        field=field,
        remedy="Send a list of OutgoingMessage(body, ...).",
    )


def _not_a_delivery(value: object, field: str) -> InvalidMessage:
    return InvalidMessage(
        f"{field}: {type(value).__name__} is not a Delivery with its receipt",
        field=field,
        remedy="Give a list of what receive() returned; nothing was changed.",
    )


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def check_content(message: OutgoingMessage, *, where: str = "", limit: int) -> bytes:
    """Return the body as bytes, or refuse body or attributes that SQS would refuse."""
    body = check_text(message.body, f"{where}body")
    size = len(body)
    # No attributes are the usual case; what is empty and no mapping, such as None, is refused.
    if message.attributes or type(message.attributes) is not dict:
        size += _check_attributes(message.attributes, f"{where}attributes")
    if size > limit:
        raise MessageTooLarge(
            f"{where}body: {size} bytes with its attributes is above the limit of {limit}",
            field=f"{where}body",
        )
    return body


def check_text(value: object, field: str) -> bytes:
    """Return the text as UTF-8, or refuse what is empty or not of SQS's characters."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(f"{field}: not UTF-8 text at byte {error.start}", field=field) from None
    else:
        raise InvalidMessage(f"{field}: {type(value).__name__} is neither text nor bytes", field=field)
    if not text:
        raise InvalidMessage(f"{field}: is empty; at least one character is needed", field=field)
    # What can be printed is allowed; the search takes longer.
    if not text.isprintable() and (bad := _FORBIDDEN.search(text)) is not None:
        code = ord(bad.group())
        raise InvalidMessage(
            f"{field}: character U+{code:04X} at position {bad.start()} is not allowed by SQS", field=field
        )
    return value if isinstance(value, bytes) else text.encode()


def _check_attributes(attributes: Mapping[str, str], field: str) -> int:
    """Return the bytes that names, types and values take."""
    if not isinstance(attributes, Mapping):
        raise InvalidMessage(f"{field}: {type(attributes).__name__} is not a mapping", field=field)
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidMessage(f"{field}: {len(attributes)} attributes; at most {MAX_ATTRIBUTES} fit", field=field)
    return sum(_check_attribute(name, value, field) for name, value in attributes.items())


def _check_attribute(name: object, value: object, field: str) -> int:
    if not isinstance(name, str) or len(name) > 256 or _ATTRIBUTE_NAME.fullmatch(name) is None:
        raise InvalidMessage(f"{field}: {name!r} is not an attribute name", field=field)
    if not isinstance(value, str):
        raise InvalidMessage(f"{field}.{name}: {type(value).__name__} is not text", field=f"{field}.{name}")
    return len(name) + len("String") + len(check_text(value, f"{field}.{name}"))


def _check_delay(spec: QueueSpec, delay: float, where: str) -> None:
    if not _is_number(delay) or not 0 <= delay <= MAX_DELAY:
        raise InvalidMessage(f"{where}delay: {delay!r} is not from 0 to {MAX_DELAY:.0f} seconds", field=f"{where}delay")
    if spec.fifo:
        raise InvalidMessage(
            f"{where}delay: a FIFO queue delays by its own setting only, never per message",
            field=f"{where}delay",
        )


def _check_fifo(spec: QueueSpec, message: OutgoingMessage, where: str) -> None:
    if message.group is None:
        raise InvalidMessage(f"{where}group: a FIFO queue needs one on every message", field=f"{where}group")
    _check_id(message.group, f"{where}group")
    if message.dedup_id is not None:
        _check_id(message.dedup_id, f"{where}dedup_id")
    elif not spec.content_dedup:
        raise InvalidMessage(
            f"{where}dedup_id: a FIFO queue without content_dedup needs one on every message",
            field=f"{where}dedup_id",
        )


def _check_standard(message: OutgoingMessage, where: str) -> None:
    if message.dedup_id is not None:
        raise InvalidMessage(f"{where}dedup_id: only FIFO queues deduplicate", field=f"{where}dedup_id")
    _check_id(message.group, f"{where}group")


def _check_id(value: object, field: str) -> None:
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise InvalidMessage(
            f"{field}: {value!r} is not 1 to 128 printable ASCII characters without space", field=field
        )


def dedup_id(message: OutgoingMessage, body: bytes) -> str:
    """The id by which a FIFO queue recognises the message again."""
    return message.dedup_id if message.dedup_id is not None else hashlib.sha256(body).hexdigest()


def check_receive(max_messages: int, wait: float, visibility: float | None) -> None:
    """Refuse arguments of `receive` that are out of range."""
    check(max_messages, whole_number(1, MAX_RECEIVE), "max_messages")
    check(wait, seconds_between(0, MAX_WAIT), "wait")
    if visibility is not None:
        check(visibility, seconds_between(0, MAX_VISIBILITY), "visibility")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
