"""What travels: an event's payload and what transport, routing and tracing need to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Required, TypedDict
from uuid import UUID

import msgspec

from postroad.errors import InvalidMessage, PostroadError, UnknownEventType
from postroad.events.strict import refusal, refuse_what_json_cannot_hold

_new = object.__new__
_set = object.__setattr__


@dataclass(frozen=True)
class Envelope:
    """One event on its way; the payload is a dict of JSON values. It is valid from the moment it is made."""

    event_type: str
    event_id: UUID
    created_at: datetime
    publisher_id: str
    payload: dict[str, Any]
    version: int = 1
    session_id: str | None = None
    tenant_id: str | None = None
    key: str | None = None
    traceparent: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """The key mapping of an event from the outbox; empty for all others. The flat form does not carry it."""

    def __post_init__(self) -> None:
        try:
            fields = msgspec.convert(vars(self), EnvelopeFields)
        except msgspec.ValidationError as error:
            raise refusal(error) from error
        refuse_what_json_cannot_hold(fields["payload"])
        _set(self, "__dict__", without_defaults(fields))


class WireFields(TypedDict, total=False):
    """An envelope as JSON has it: five keys always, the others when they say something."""

    event_type: Required[str]
    event_id: Required[UUID]
    created_at: Required[Annotated[datetime, msgspec.Meta(tz=True)]]
    publisher_id: Required[str]
    payload: Required[dict[str, Any]]
    version: Annotated[int, msgspec.Meta(ge=1)]
    session_id: str | None
    tenant_id: str | None
    key: str | None
    traceparent: str | None
    correlation_id: str | None
    causation_id: str | None


class EnvelopeFields(WireFields, total=False):
    """All fields of an envelope, those included that only the outbox's form carries."""

    keys: dict[str, str]


class _NoKeys:
    """Answers for `keys` where an envelope has none: `envelope_of` leaves defaults to the class."""

    def __get__(self, envelope: Envelope | None, owner: type[Envelope]) -> Mapping[str, str]:
        return {}


Envelope.keys = _NoKeys()  # type: ignore[assignment]  # a dataclass keeps no default that is made anew


def without_defaults(fields: WireFields | EnvelopeFields) -> dict[str, Any]:
    """Return the fields that say something: neither None, nor version 1, nor no keys."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and not (name == "version" and value == 1) and not (name == "keys" and not value)
    }


def envelope_of(fields: Mapping[str, Any]) -> Envelope:
    """The envelope of fields that are valid and without defaults; they become its own.

    A default is answered by the class, so `vars(envelope)` is what goes on the wire, and one assignment takes the
    place of twelve: a frozen dataclass's own constructor costs more than all of the encoding.
    """
    envelope = _new(Envelope)
    _set(envelope, "__dict__", fields)
    return envelope


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
