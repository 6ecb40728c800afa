"""Events without their classes: what a program needs that only passes them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from postroad.bus.config import group_of
from postroad.bus.messages import attributes_of
from postroad.errors import InvalidMessage
from postroad.events import Envelope, uuid7
from postroad.events.identity import checked_name
from postroad.queues import OutgoingMessage


@dataclass(frozen=True, slots=True)
class _Requested:
    """The one field of an event, besides those of its envelope, that its order may depend on."""

    request_id: object


def envelope_for(
    event_type: str,
    payload: Any,
    *,
    publisher_id: str,
    now: datetime,
    key: str | None = None,
    new_id: Callable[[], UUID] = uuid7,
) -> Envelope:
    """The envelope that the event's own class would have been wrapped in, as far as its name and payload tell."""
    if not isinstance(payload, dict):
        raise InvalidMessage(f"payload: {type(payload).__name__} is not an object", field="payload")
    return Envelope(
        event_type=checked_name(event_type),
        event_id=new_id(),
        created_at=now,
        publisher_id=publisher_id,
        payload=payload,
        session_id=_text(payload, "session_id"),
        tenant_id=_text(payload, "tenant_id"),
        key=key,
    )


def message_for(envelope: Envelope, body: bytes, *, fifo: bool) -> OutgoingMessage:
    """Return the event as a bus would publish it to a topic; the body keeps its JSON form."""
    return OutgoingMessage(
        body,
        attributes_of(envelope),
        group=order_key(envelope) if fifo else None,
        dedup_id=str(envelope.event_id) if fifo else None,
    )


def order_key(envelope: Envelope) -> str:
    """What is kept in order with this event: its key, else its request, else its publisher."""
    event = _Requested(envelope.payload.get("request_id"))
    return group_of(None, envelope, event, fifo=True) or envelope.publisher_id


def _text(payload: dict[str, Any], name: str) -> str | None:
    value = payload.get(name)
    return value if isinstance(value, str) else None
