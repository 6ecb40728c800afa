"""Bodies of messages: the event's JSON, as it was published or wrapped by SNS."""

from __future__ import annotations

from typing import Literal

import msgspec

from postroad.events import DomainEvent


class _Notification(msgspec.Struct):
    """What SNS puts around a message unless the subscription delivers it raw."""

    Type: Literal["Notification"]
    Message: str


_decode = msgspec.json.Decoder(_Notification).decode


def read_event(body: bytes) -> DomainEvent:
    """The event in the body; InvalidMessage for what is none."""
    return DomainEvent.from_json(_unwrapped(body) or body)


def _unwrapped(body: bytes) -> str | None:
    if b'"Notification"' not in body:
        return None
    try:
        return _decode(body).Message
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # An event that speaks of notifications.
        return None
