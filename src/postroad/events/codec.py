"""The codec: events to envelopes to bytes, and back."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, get_args, get_origin
from uuid import UUID

import msgspec

from postroad.arguments import building
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidEvent, InvalidMessage, PostroadError, RemoteError
from postroad.events.decorators import lifted
from postroad.events.domain import DomainEvent
from postroad.events.envelope import (
    MAX_BYTES,
    Envelope,
    WireFields,
    as_text,
    as_uuid,
    checked_bytes,
    envelope_of,
    in_utc,
    is_safe,
    is_strict,
    not_an_event,
    refusal,
    refuse_what_json_cannot_hold,
    sendable,
    session_of,
    too_large,
    unsendable,
    uuid7,
    without_defaults,
)
from postroad.events.models import is_model, read_model, write_model
from postroad.events.registry import EventRegistry, default_registry
from postroad.events.shapes import OpenField, Shape, Slot, default_name, is_union, shape_of

EXCEPTION_KEY = "__exception__"
_LEVELS_OF_ARGUMENTS = 32
_BUILT_IN = {
    default_name(value): value
    for value in vars(builtins).values()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def write_exception(error: BaseException, name: str, write: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the exception as type name, message and args; an argument that JSON cannot hold becomes its repr."""
    message, args = str(error), error.args
    if isinstance(error, RemoteError):
        name, message, args = error.type_name, error.message, error.remote_args
    # The name of a file may hold what is not text; the message is for people, so it is shown escaped.
    text = message.encode(errors="backslashreplace").decode()
    return {EXCEPTION_KEY: name, "message": text, "args": [_argument(arg, write) for arg in args]}


def _argument(value: Any, write: Callable[[Any], Any]) -> Any:
    try:
        result = write(value)
        msgspec.json.encode(result)
    except Exception:
        return repr(value)
    return result if is_strict((result,), _LEVELS_OF_ARGUMENTS) else repr(value)


def read_exception(cls: type | None, name: str, message: str, args: list[Any]) -> BaseException:
    """Return the exception as the class that is known here, else as RemoteError."""
    known = cls or _BUILT_IN.get(name)
    if known is not None and issubclass(known, BaseException):
        # A constructor may take other parameters: then class and args come back without the fields it would set.
        for make in (known, partial(known.__new__, known)):
            with suppress(Exception):
                return make(*args)
    return RemoteError(name, message, tuple(args))


TYPE_KEY = "__type__"


class Tagging:
    """Turns dataclass instances into dicts of JSON values and back, with the types of one registry."""

    def __init__(self, registry: EventRegistry) -> None:
        self._registry = registry
        self._shapes: dict[Any, Shape] = {}

    def shape(self, annotation: Any) -> Shape:
        """Return how the class is read and written, computed once."""
        known = self._shapes.get(annotation)
        if known is None:
            with building:
                known = self._shapes[annotation] = shape_of(annotation)
        return known

    def write(self, value: Any, shape: Shape) -> dict[str, Any]:
        if shape.is_model:
            return write_model(value)
        if shape.plain:
            return msgspec.to_builtins(value)  # type: ignore[no-any-return]  # a dataclass becomes a dict
        if shape.fields is None:
            return msgspec.to_builtins(value, str_keys=True)  # type: ignore[no-any-return]  # a dataclass becomes a dict
        return {field.name: self._write_field(getattr(value, field.name), field) for field in shape.fields}

    def read(self, payload: Any, shape: Shape) -> Any:
        if shape.is_model:
            return read_model(shape.cls, payload)
        if shape.plain:
            return msgspec.convert(payload, shape.reads)
        found = msgspec.convert(payload, shape.reads, str_keys=True, dec_hook=self._read_open)
        return found if shape.fields is None else _built(shape.cls, found, shape.fields)

    def tag(self, value: Any) -> Any:
        """Return the value as JSON, with the type names of the dataclasses and exceptions in it."""
        if isinstance(value, dict):
            keys = [
                k if isinstance(k, str) else next(iter(msgspec.to_builtins({k: None}, str_keys=True))) for k in value
            ]
            return {key: self.tag(item) for key, item in zip(keys, value.values(), strict=True)}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.tag(item) for item in value]
        if isinstance(value, type):
            return msgspec.to_builtins(value)
        if dataclasses.is_dataclass(value) or is_model(type(value)):
            return {TYPE_KEY: self._name(type(value)), **self.write(value, self.shape(type(value)))}
        if isinstance(value, BaseException):
            return write_exception(value, self._name(type(value)), self.tag)
        return msgspec.to_builtins(value, str_keys=True)

    def revive(self, value: Any) -> Any:
        """Return the value that `tag` wrote; a type that this registry does not know stays a plain dict."""
        if isinstance(value, list):
            return [self.revive(item) for item in value]
        if not isinstance(value, dict):
            return value
        if EXCEPTION_KEY in value:
            name, message, args = value[EXCEPTION_KEY], value.get("message"), value.get("args")
            if not isinstance(name, str) or not isinstance(message, str) or not isinstance(args, list):
                raise ValueError(f"Expected an exception's `{EXCEPTION_KEY}`, `message` and `args`")
            return read_exception(self._registry.find(name), name, message, self.revive(args))
        name = value.get(TYPE_KEY)
        cls = self._registry.find(name) if isinstance(name, str) else None
        if dataclasses.is_dataclass(cls) or is_model(cls):
            return self._read_nested({key: item for key, item in value.items() if key != TYPE_KEY}, cls)
        return {key: self.revive(item) for key, item in value.items()}

    def _write_field(self, value: Any, field: OpenField) -> Any:
        if field.closed:
            return msgspec.to_builtins(value, str_keys=True)
        if field.nested and (dataclasses.is_dataclass(value) or is_model(type(value))):
            return self.write(value, self.shape(type(value)))
        return self.tag(value)

    def _read_open(self, tp: Any, value: Any) -> Any:
        if tp is object:
            return self.revive(value)
        if isinstance(tp, Slot):
            return self._read_slot(value, tp.target)
        found = self.revive(value)
        if not isinstance(found, tp):
            raise ValueError(f"Expected `{tp.__name__}`, got `{type(found).__name__}`")
        return found

    def _read_slot(self, value: Any, target: Any) -> Any:
        if is_union(target):
            members = {self._name(get_origin(each) or each): each for each in get_args(target)}
            name = value.get(TYPE_KEY) if isinstance(value, dict) else None
            if not isinstance(name, str) or name not in members:
                return self.revive(value)
            value, target = {key: item for key, item in value.items() if key != TYPE_KEY}, members[name]
        if isinstance(target, type) and issubclass(target, Enum):
            for member in target:
                if msgspec.json.encode(member) == msgspec.json.encode(value):
                    return member
            raise ValueError(f"{value!r} is not a valid {target.__name__}")
        return self._read_nested(value, target)

    def _read_nested(self, value: Any, annotation: Any) -> Any:
        try:
            return self.read(value, self.shape(annotation))
        except msgspec.ValidationError as error:
            # To the errors of a hook, msgspec adds the path only if they are ValueErrors.
            raise ValueError(str(error)) from error

    def _name(self, cls: type) -> str:
        return self._registry.known_name(cls) or default_name(cls)


def _built(cls: type, found: Any, fields: tuple[OpenField, ...]) -> Any:
    given = [(field, value) for field in fields if (value := getattr(found, field.name)) is not msgspec.UNSET]
    try:
        made = cls(**{field.name: value for field, value in given if field.init})
    except Exception as error:
        raise msgspec.ValidationError(f"{type(error).__name__}: {error}") from error
    for field, value in given:
        if not field.init:
            object.__setattr__(made, field.name, value)
    return made


_REQUIRED_KEYS = 5
_ROUTING = ("tenant_id", "key", "traceparent", "correlation_id", "causation_id")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WireFields).decode
_FORMS = (
    "Send the bus's envelope (event_type, event_id, created_at, publisher_id, payload) "
    "or the outbox's three keys (envelope, key, payload)."
)

_WRONG_TYPE = "Give the field a value of the type that it declares, or correct its annotation; nothing was published."


class _Hint(msgspec.Struct):
    """The keys that tell the forms apart: the outbox's `envelope`, or those that SNS puts around a message."""

    envelope: msgspec.Raw = msgspec.Raw(b"")
    Type: object = None
    Message: object = None


_hint = msgspec.json.Decoder(_Hint).decode


class Codec:
    """Wraps events in envelopes, writes envelopes as strict JSON, and reads both back.

    Args:
        registry: The classes by name; the default one holds every class with `@event`.
        clock: Gives `created_at`; pass another one in tests.
        new_id: Makes ids for events that have none of their own.
        max_bytes: The largest message that is written or read, 100 MiB by default.

    Example:
        envelope = codec.wrap(OrderPlaced("A-1"), publisher_id="web")
        assert codec.unwrap(codec.decode(codec.encode(envelope))) == OrderPlaced("A-1")
    """

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
        """Return the envelope of the event, with its own `event_id` and `session_id`, else a new id and no session.

        Args:
            event: An instance of a registered class.
            publisher_id: Who publishes it.
            session_id: The session that it belongs to, instead of its own.
            tenant_id: The tenant that it belongs to.
            key: What orders it.
            traceparent: The W3C trace that it is part of.
            correlation_id: The id of the first event of a chain.
            causation_id: The id of the event that caused it.
            event_id: Its id, instead of its own or a new one.
            created_at: When it was published; by default now.

        Raises:
            InvalidEvent: A field does not hold what its annotation says, so that no receiver could read it.
            InvalidMessage: A field holds what JSON cannot.
        """
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
        """Return the event in `envelope`, upcast to the version known here, as the class registered for its type."""
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
        """Return `envelope` as strict JSON: five keys always, the others when they are set."""
        if not isinstance(envelope, Envelope):
            raise InvalidMessage(f"{type(envelope).__name__} is not an Envelope", remedy="Call wrap(event, …) first.")
        fields = envelope.__dict__
        if "keys" in fields:
            # The flat form has no place for the keys of an outbox event.
            fields = {name: value for name, value in fields.items() if name != "keys"}
        try:
            data = sendable(_encode(fields))
        except Exception as error:
            raise unsendable(vars(envelope), path="", why=error) from error
        if len(data) > self.max_bytes:
            raise too_large(len(data), self.max_bytes)
        return data

    def decode(self, data: bytes | bytearray | memoryview | str) -> Envelope:
        """Return the envelope that `data` holds, in the bus's flat form or the outbox's three keys.

        Either form may be inside the notification that SNS puts around a message. No code is imported.

        Raises:
            InvalidMessage: The bytes are anything else; `field` names the field at fault.
        """
        checked = data if is_safe(data, self.max_bytes) else checked_bytes(data, self.max_bytes)
        try:
            fields = _decode(checked)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self._decode_other(checked, error)
        return envelope_of(fields if len(fields) == _REQUIRED_KEYS else without_defaults(fields))

    def _decode_other(self, data: bytes, error: Exception) -> Envelope:
        """Read another form than the flat one, or raise the error of the flat one."""
        try:
            hint = _hint(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            hint = _Hint()
        if hint.Type == "Notification" and isinstance(hint.Message, str):
            return self.decode(hint.Message)
        if not hint.envelope:
            raise refusal(error, size=len(data), remedy=_FORMS) from error
        try:
            return DomainEvent.from_json(data).to_envelope()
        except InvalidMessage as refused:
            raise InvalidMessage(refused.message, field=refused.field, remedy=_FORMS) from refused

    def _payload(self, event: object, shape: Shape) -> dict[str, Any]:
        try:
            payload: dict[str, Any] = msgspec.to_builtins(event) if shape.plain else self._tagging.write(event, shape)
        except Exception as error:
            raise unsendable({} if shape.is_model else event, path="payload", why=error) from error
        refuse_what_json_cannot_hold(payload)
        if shape.checks is not None:
            try:
                msgspec.convert(payload, shape.checks, str_keys=not shape.plain)
            except Exception as error:
                refused = refusal(error, root="payload")
                raise InvalidEvent(refused.message, field=refused.field, remedy=_WRONG_TYPE) from error
        return payload


codec = Codec()
