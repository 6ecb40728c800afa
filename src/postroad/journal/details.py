"""Events that arrive from outside: believed only as far as they can be computed again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from postroad.errors import EventTooLarge, InvalidEvent, OverflowMismatch
from postroad.journal.event import ATTRIBUTES, OVERFLOW, JournalEvent, check_event, keys_of
from postroad.journal.overflow import MAX_ITEM_BYTES, checked_pointer

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def event_of_detail(detail: object) -> JournalEvent:
    """The event that an item claims to be, or `InvalidEvent` when anything in it is not what follows from it."""
    if not isinstance(detail, dict):
        raise InvalidEvent("detail: is not an object", field="detail")
    _check_attributes(detail)
    event = JournalEvent.from_item(detail)
    check_event(event, packed=True)
    _check_keys(event, detail)
    if OVERFLOW in event.properties:
        _check_pointer(event)
    if (size := len(msgspec.json.encode(detail))) > MAX_ITEM_BYTES:
        raise EventTooLarge(f"detail: {size:,} bytes of JSON are above {MAX_ITEM_BYTES:,}", field="detail")
    return event


def _check_attributes(detail: Mapping[str, Any]) -> None:
    for name in detail:
        if name not in ATTRIBUTES:
            raise InvalidEvent(f"{name}: is not the sender's to set", field=str(name), remedy="Leave it out.")
    for name in ATTRIBUTES:
        if name not in detail:
            raise InvalidEvent(f"{name}: is missing", field=name)


def _check_keys(event: JournalEvent, detail: Mapping[str, Any]) -> None:
    for name, value in keys_of(event).items():
        if detail[name] != value:
            raise InvalidEvent(
                f"{name}: is not the key that follows from the event's fields", field=name,
                remedy="Send what JournalEvent.to_item() returns, unchanged.",
            )  # fmt: skip


def _check_pointer(event: JournalEvent) -> None:
    where = f"properties.{OVERFLOW}"
    try:
        pointer = checked_pointer(event, None)
    except OverflowMismatch as error:
        raise InvalidEvent(f"{where}: {error.message}", field=where) from None
    if _SHA256.fullmatch(pointer.sha256) is None or pointer.size < 0:
        raise InvalidEvent(f"{where}: is not the hash and size of a blob", field=where)
