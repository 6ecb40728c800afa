"""What an envelope takes from its event and its caller, and what it refuses."""

from __future__ import annotations

from dataclasses import is_dataclass
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from postroad.errors import InvalidMessage, PostroadError, UnknownEventType


def not_an_event(event: object) -> PostroadError:
    """The error for what no registry knows how to name."""
    cls = type(event)
    if isinstance(event, msgspec.Struct) or (is_dataclass(event) and not isinstance(event, type)):
        return UnknownEventType(f"event_type: {cls.__qualname__} is not registered", field="event_type")
    return InvalidMessage(
        f"{cls.__qualname__} is not an event",
        remedy="Pass an instance of a class with @event, or of a registered dataclass or Struct.",
    )


def as_uuid(value: object) -> UUID:
    """The event's id, given as a UUID or as the text of one."""
    if isinstance(value, UUID):
        return value
    try:
        if isinstance(value, str):
            return UUID(value)
    except ValueError:
        pass
    remedy = "Use a UUID, or none and one is made."
    raise InvalidMessage(f"event_id: {str(value)[:80]!r} is not a UUID", field="event_id", remedy=remedy)


def session_of(event: object, given: object) -> dict[str, str]:
    """The session that was given, else the event's own where that is a UUID or text."""
    if given is not None:
        return {"session_id": str(given) if isinstance(given, UUID) else as_text("session_id", given)}
    own = getattr(event, "session_id", None)
    return {"session_id": str(own)} if isinstance(own, str | UUID) else {}


def in_utc(moment: object) -> datetime:
    """The moment in UTC; one without a time zone is refused."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        why = f"created_at: {moment!r} is not a datetime with a time zone"
        raise InvalidMessage(why, field="created_at", remedy="Use datetime.now(UTC).")
    return moment.astimezone(UTC)


def as_text(name: str, value: object) -> str:
    """The value, when it is text."""
    if isinstance(value, str):
        return value
    raise InvalidMessage(f"{name}: expected text, got {type(value).__name__}", field=name)
