"""The one codec: events to envelopes to bytes, and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidMessage, PostroadError
from postroad.events.domain import DomainEvent
from postroad.events.envelope import (
    Envelope,
    WireFields,
    as_text,
    as_uuid,
    envelope_of,
    in_utc,
    not_an_event,
    session_of,
    without_defaults,
)
from postroad.events.ids import uuid7
from postroad.events.registry import EventRegistry, default_registry
from postroad.events.shapes import Shape
from postroad.events.strict import (
    MAX_BYTES,
    checked_bytes,
    is_safe,
    refusal,
    refuse_what_json_cannot_hold,
    sendable,
    too_large,
    unsendable,
)
from postroad.events.tagging import Tagging
from postroad.events.upcast import lifted

_REQUIRED_KEYS = 5
_ROUTING = ("tenant_id", "key", "traceparent", "correlation_id", "causation_id")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WireFields).decode
_FORMS = (
    "Send the bus's envelope (event_type, event_id, created_at, publisher_id, payload) "
    "or the outbox's three keys (envelope, key, payload)."
)


class _Hint(msgspec.Struct):
    """What tells the forms apart: the outbox's `envelope`, or what SNS puts around a message."""

    envelope: msgspec.Raw = msgspec.Raw(b"")
    Type: object = None
    Message: object = None


_hint = msgspec.json.Decoder(_Hint).decode


class Codec:
    """Wraps events in envelopes, writes envelopes as strict JSON, and reads both back."""

    def __init__(
        self,
        registry: EventRegistry = default_registry,
        *,
        clock: Clock = SYSTEM_CLOCK,
        new_id: Callable[[], UUID] = uuid7,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.registry = registry
        self.max_bytes = max_bytes
        self._now = clock.now
        self._new_id = new_id
        self._tagging = Tagging(registry)

    def wrap(
        self,
        event: object,
        *,
        publisher_id: str,
        session_id: str | UUID | None = None,
        tenant_id: str | None = None,
        key: str | None = None,
        traceparent: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        event_id: UUID | str | None = None,
        created_at: datetime | None = None,
    ) -> Envelope:
        """The envelope of the event: its own `event_id` and `session_id` where it has them, else a new id and none."""
        cls = type(event)
        name = self.registry.known_name(cls)
        if name is None:
            raise not_an_event(event)
        shape = self._tagging.shape(cls)
        own_id = getattr(event, "event_id", None) if event_id is None and shape.has_event_id else event_id
        fields: dict[str, Any] = {
            "event_type": name,
            "event_id": self._new_id() if own_id is None else as_uuid(own_id),
            "created_at": self._now() if created_at is None else in_utc(created_at),
            "publisher_id": as_text("publisher_id", publisher_id),
            "payload": self._payload(event, shape),
        }
        if shape.version != 1:
            fields["version"] = shape.version
        if session_id is not None or shape.has_session_id:
            fields |= session_of(event, session_id)
        if not (tenant_id is key is traceparent is correlation_id is causation_id is None):
            given = zip(_ROUTING, (tenant_id, key, traceparent, correlation_id, causation_id), strict=True)
            fields |= {field: as_text(field, value) for field, value in given if value is not None}
        return envelope_of(fields)

    def unwrap(self, envelope: Envelope) -> Any:
        """The event in the envelope, lifted to the version known here, as the class registered under its type."""
        cls = self.registry.find(envelope.event_type) or self.registry.type_of(envelope.event_type)
        shape = self._tagging.shape(cls)
        current = envelope.version == shape.version
        payload = envelope.payload if current else lifted(cls, envelope.payload, envelope.version)
        try:
            return msgspec.convert(payload, cls) if shape.plain else self._tagging.read(payload, shape)
        except PostroadError:
            raise
        except Exception as error:
            raise refusal(error, root="payload") from error

    def encode(self, envelope: Envelope) -> bytes:
        """The envelope as strict JSON: five keys always, the others when they say something."""
        if not isinstance(envelope, Envelope):
            raise InvalidMessage(f"{type(envelope).__name__} is not an Envelope", remedy="Call wrap(event, …) first.")
        try:
            data = sendable(_encode(_flat(envelope.__dict__)))
        except Exception as error:
            raise unsendable(vars(envelope), path="", why=error) from error
        if len(data) > self.max_bytes:
            raise too_large(len(data), self.max_bytes)
        return data

    def decode(self, data: bytes | bytearray | memoryview | str) -> Envelope:
        """Return the envelope that the bytes hold, in the bus's flat form or the outbox's three keys.

        Either form may stand inside the notification that SNS puts around a message. Anything else is
        InvalidMessage. Nothing is imported.
        """
        checked = data if is_safe(data, self.max_bytes) else checked_bytes(data, self.max_bytes)
        try:
            fields = _decode(checked)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self._decode_other(checked, error)
        return envelope_of(fields if len(fields) == _REQUIRED_KEYS else without_defaults(fields))

    def _decode_other(self, data: bytes, error: Exception) -> Envelope:
        """Read what is not the flat form, or raise what is wrong with it."""
        try:
            hint = _hint(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            hint = _Hint()
        if hint.Type == "Notification" and isinstance(hint.Message, str):
            return self.decode(hint.Message)
        if hint.envelope:
            return DomainEvent.from_json(data).to_envelope()
        raise refusal(error, size=len(data), remedy=_FORMS) from error

    def _payload(self, event: object, shape: Shape) -> dict[str, Any]:
        try:
            payload: dict[str, Any] = msgspec.to_builtins(event) if shape.plain else self._tagging.write(event, shape)
        except Exception as error:
            raise unsendable(event, path="payload", why=error) from error
        refuse_what_json_cannot_hold(payload)
        return payload


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the flat form carries."""
    return fields if "keys" not in fields else {name: value for name, value in fields.items() if name != "keys"}


codec = Codec()
