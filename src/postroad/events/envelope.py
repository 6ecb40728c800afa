"""The envelope of an event: its id, the checks that keep its JSON strict, and what transport and tracing need."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from math import isfinite
from types import NoneType
from typing import Annotated, Any, Required, TypedDict, TypeGuard
from uuid import UUID

import msgspec

from postroad.errors import InvalidMessage, MessageTooLarge, PostroadError, UnknownEventType
from postroad.events.models import fault_of_model, is_model

MAX_DEPTH = 64
MAX_BYTES = 104_857_600
_LEVELS_OF_PAYLOAD = MAX_DEPTH - 1
_SHOWN_PATH = 100

NUL = b"\\u0000"
"""The character NUL as JSON holds it."""
_ALWAYS_STRICT = frozenset({str, int, bool, NoneType})
_PLAIN = _ALWAYS_STRICT | {float, dict, list, tuple}
_ONE_KIND_OF_BRACKET = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def sendable(encoded: bytes) -> bytes:
    """Return the JSON with U+FFFE and U+FFFF escaped, because SQS refuses the characters themselves."""
    if encoded.isascii() or b"\xef\xbf" not in encoded:
        return encoded
    return encoded.replace(b"\xef\xbf\xbe", rb"\ufffe").replace(b"\xef\xbf\xbf", rb"\uffff")


def is_safe(data: object, max_bytes: int) -> TypeGuard[bytes]:
    """Return whether the message surely is safe to parse: a quick check that most messages pass."""
    return type(data) is bytes and len(data) <= max_bytes and data.isascii() and _has_few_brackets(data)


def checked_bytes(data: object, max_bytes: int) -> bytes:
    """Return the message as bytes that are safe to parse: UTF-8 within the limits of size and depth."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"character {error.start}: a lone surrogate is not text") from error
    elif isinstance(data, bytearray | memoryview):
        data = bytes(data)
    if not isinstance(data, bytes):
        raise InvalidMessage(f"the message is {type(data).__name__}, not bytes")
    if len(data) > max_bytes:
        raise too_large(len(data), max_bytes)
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(f"byte {error.start}: not UTF-8 ({error.reason})") from error
    if is_too_deep(data):
        raise InvalidMessage(f"the message is nested deeper than {MAX_DEPTH} levels")
    return data


def repeated_key(data: bytes) -> str | None:
    """Return the first key that an object of the JSON gives twice, which is all that msgspec does not check."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)

    json.loads(data, object_pairs_hook=look)
    return repeated[0][:80] if repeated else None


def place_of_nul(value: object, path: str) -> str | None:
    """Return the path of a text with the character NUL, which neither databases nor SQS accept; None without one."""
    if isinstance(value, str):
        return path if "\0" in value else None
    if isinstance(value, dict):
        children = [(f"{path}.{name}", [name, child]) for name, child in value.items()]
        return next((found for place, pair in children for part in pair if (found := place_of_nul(part, place))), None)
    if isinstance(value, list | tuple):
        places = (place_of_nul(child, f"{path}[{index}]") for index, child in enumerate(value))
        return next((found for found in places if found), None)
    return None


def too_large(size: int, max_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(f"the message has {size:,} bytes, above the limit of {max_bytes:,}")


def is_too_deep(data: bytes) -> bool:
    """Return whether well-formed JSON is nested deeper than the limit; the parser refuses all other JSON."""
    if _has_few_brackets(data):
        return False
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(_ONE_KIND_OF_BRACKET, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            return outer.count(b"[") > MAX_DEPTH
        brackets = outer
    return bool(brackets)


def _has_few_brackets(data: bytes) -> bool:
    # split stops above the limit and searches at memchr's speed.
    return len(data.split(b"{", MAX_DEPTH + 1)) + len(data.split(b"[", MAX_DEPTH + 1)) - 2 <= MAX_DEPTH


def is_strict(values: Iterable[Any], levels: int) -> bool:
    """Return whether the JSON values hold neither NaN nor infinity and nest within the levels left."""
    doubtful = [value for value in values if type(value) not in _ALWAYS_STRICT]
    return not doubtful or all(_is_strict_value(value, levels) for value in doubtful)


def _is_strict_value(value: Any, levels: int) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return levels > 0 and is_strict(value.values(), levels - 1)
    if isinstance(value, list | tuple | set | frozenset):
        return levels > 0 and is_strict(value, levels - 1)
    return True


def refuse_what_json_cannot_hold(payload: dict[str, Any]) -> None:
    """Raise InvalidMessage, with the path, if a payload holds NaN or infinity or is nested too deep."""
    if not is_strict(payload.values(), _LEVELS_OF_PAYLOAD - 1):
        raise unsendable(payload, path="payload")


def unsendable(
    value: object, *, path: str, levels: int = _LEVELS_OF_PAYLOAD, why: Exception | None = None, plain: bool = False
) -> InvalidMessage:
    """Return the error that names the first place in the value that strict JSON cannot hold.

    With `plain` the value must be JSON as it is, without sets, times and what else the codec would write.
    """
    place, reason = _fault(value, path, levels, plain) or (path, str(why or "cannot be written as JSON"))
    place = place.removeprefix(".")
    place = place if len(place) <= _SHOWN_PATH else f"{place[:_SHOWN_PATH]}…"
    return InvalidMessage(f"{place}: {reason}", field=place)


def _fault(value: object, path: str, levels: int, plain: bool) -> tuple[str, str] | None:
    if plain and type(value) not in _PLAIN:
        return path, f"{type(value).__name__} is not a JSON value"
    if not (isinstance(value, dict | list | tuple | set | frozenset) or _is_dataclass_instance(value)):
        return _leaf_fault(value, path)
    if levels < 1:
        return path, f"nested deeper than {MAX_DEPTH} levels, or part of itself"
    if isinstance(value, dict):
        for key in value:
            if plain and type(key) is not str:
                return path, f"its key {key!r} is not text"
            if (found := _leaf_fault({key: None}, path)) is not None:
                return found
    faults = (_fault(child, place, levels - 1, plain) for place, child in _children(value, path))
    return next((found for found in faults if found is not None), None)


def _leaf_fault(value: object, path: str) -> tuple[str, str] | None:
    if isinstance(value, BaseException):
        return None
    if isinstance(value, float) and not isfinite(value):
        return path, f"JSON has no {value}"
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        return path, f"a lone surrogate at position {error.start} is not text"
    except Exception as error:
        return path, f"{type(value).__name__} cannot be written as JSON ({error})"
    return None


def _is_dataclass_instance(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value: Any, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        return ((f"{path}.{key}", child) for key, child in value.items())
    if _is_dataclass_instance(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return ((f"{path}.{name}", getattr(value, name)) for name in names)
    return ((f"{path}[{index}]", child) for index, child in enumerate(value))


_SHOWN_REASON = 300
_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<place>[^`]*)`")
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def explained(error: Exception, data: bytes) -> str:
    """Return msgspec's error about the JSON, with the position if it does not name one."""
    text = str(error)
    if not text.endswith("truncated"):
        return text
    lone = _LONE_SURROGATE.search(data)
    return f"{text} (byte {len(data)})" if lone is None else f"a lone surrogate is not text (byte {lone.start()})"


def refusal(error: Exception, *, root: str = "", size: int = 0, remedy: str | None = None) -> InvalidMessage:
    """Return the error as InvalidMessage with the path of the field at fault below `root` or the byte where it ends."""
    text = str(error)
    if text.endswith("truncated"):
        text += f" (byte {size})"
    # A hook's own places come before the place at which msgspec called it.
    places, missing = reversed(_PLACE.findall(text)), _MISSING.search(text)
    path = (root + "".join(places) + (f".{missing['name']}" if missing else "")).removeprefix(".")
    reason = _PLACE.sub("", text)[:_SHOWN_REASON] or type(error).__name__
    text = f"{path}: {reason}" if path else f"the message is not valid: {reason}"
    return InvalidMessage(text, field=path or None, remedy=remedy)


_RANDOM_BITS = 74
_MAX_MILLISECONDS = (1 << 48) - 1


def uuid7_of(milliseconds: int, tail: int) -> UUID:
    """Return the UUIDv7 of a time, in milliseconds since 1970, and 74 further bits."""
    version_and_high = 0x7000 | (tail >> 62)
    variant_and_low = (0b10 << 62) | (tail & ((1 << 62) - 1))
    number = (milliseconds << 80) | (version_and_high << 64) | variant_and_low
    # msgspec makes a UUID of 16 bytes in half the time of UUID(int=…).
    return msgspec.convert(number.to_bytes(16, "big"), UUID)


class UUID7Source:
    """Makes UUIDv7s, each greater than the one before, even if the clock steps back.

    Args:
        time_ns: Returns the time in nanoseconds since 1970.
        random_bytes: Returns the given number of random bytes.
    """

    def __init__(
        self, *, time_ns: Callable[[], int] = time.time_ns, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._time_ns = time_ns
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._milliseconds = -1
        self._tail = 0

    def __call__(self) -> UUID:
        """Return the next id."""
        with self._lock:
            milliseconds = self._time_ns() // 1_000_000
            if milliseconds > self._milliseconds:
                self._milliseconds = min(milliseconds, _MAX_MILLISECONDS)
                # The highest bit is left clear, so that counting up within one millisecond cannot overflow.
                self._tail = int.from_bytes(self._random_bytes(10), "big") >> (81 - _RANDOM_BITS)
            else:
                self._tail += 1
            return uuid7_of(self._milliseconds, self._tail)

    def forget(self) -> None:
        """Start afresh: a forked child must not make the ids that its parent makes."""
        self._lock = threading.Lock()
        self._milliseconds = -1


uuid7 = UUID7Source()
os.register_at_fork(after_in_child=uuid7.forget)

_new = object.__new__
_set = object.__setattr__


@dataclass(frozen=True)
class Envelope:
    """An event in transit: its payload, and what transport, routing and tracing need.

    Args:
        event_type: The name that the class is registered under.
        event_id: A UUID, the same in every copy; receivers recognise repeats by it.
        created_at: When it was published, with a time zone.
        publisher_id: The bus or service that published it.
        payload: The fields of the event, as JSON values.
        version: The version of the class that wrote the payload.
        session_id: The session that it belongs to.
        tenant_id: The tenant that it belongs to.
        key: What orders it; events of one key stay in order on FIFO.
        traceparent: The W3C trace that it is part of.
        correlation_id: The id of the first event of a chain.
        causation_id: The id of the event whose handler published it.
        keys: The key mapping of an event from the outbox.

    Raises:
        InvalidMessage: A field has the wrong type, or the payload is not strict JSON.
    """

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
    """Empty for events that are not from the outbox. The flat form does not carry it."""

    def __post_init__(self) -> None:
        try:
            fields = msgspec.convert(vars(self), EnvelopeFields)
        except msgspec.ValidationError as error:
            raise refusal(error) from error
        refuse_what_json_cannot_hold(fields["payload"])
        _set(self, "__dict__", without_defaults(fields))


class WireFields(TypedDict, total=False):
    """An envelope as JSON: five keys always, the others when they are set."""

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
    """All fields of an envelope, including those that only the outbox's form carries."""

    keys: dict[str, str]


class _NoKeys:
    """The value of `keys` for envelopes that have none: `envelope_of` leaves defaults to the class."""

    def __get__(self, envelope: Envelope | None, owner: type[Envelope]) -> Mapping[str, str]:
        return {}


Envelope.keys = _NoKeys()  # type: ignore[assignment]  # a dataclass has no place for a default that is a new object


def without_defaults(fields: WireFields | EnvelopeFields) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if value is not None and not (name == "version" and value == 1) and not (name == "keys" and not value)
    }


def envelope_of(fields: Mapping[str, Any]) -> Envelope:
    """Return an envelope that owns these fields, which must be valid and without defaults.

    The class has the defaults, so `vars(envelope)` is what goes on the wire, and one assignment replaces twelve: the
    constructor of a frozen dataclass costs more than all of the encoding.
    """
    envelope = _new(Envelope)
    _set(envelope, "__dict__", fields)
    return envelope


def not_an_event(event: object) -> PostroadError:
    """Return the error for an object whose class the registry does not know."""
    cls = type(event)
    if is_model(cls) and (fault := fault_of_model(cls)) is not None:
        return fault
    if isinstance(event, msgspec.Struct) or is_model(cls) or (is_dataclass(event) and not isinstance(event, type)):
        return UnknownEventType(f"event_type: {cls.__qualname__} is not registered", field="event_type")
    shown = f"the class {event.__qualname__} itself" if isinstance(event, type) else cls.__qualname__
    remedy = "Pass an instance of a class with @event, or of a registered dataclass, pydantic model or Struct."
    return InvalidMessage(f"{shown} is not an event", remedy=remedy)


def as_uuid(value: object) -> UUID:
    """Return the event's id, which may be a UUID or the text of one."""
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
    """Return the session that was given, else the event's own if that is a UUID or text."""
    if given is not None:
        return {"session_id": str(given) if isinstance(given, UUID) else as_text("session_id", given)}
    own = getattr(event, "session_id", None)
    return {"session_id": str(own)} if isinstance(own, str | UUID) else {}


def in_utc(moment: object) -> datetime:
    """Return the time in UTC; refuse one without a time zone."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        why = f"created_at: {moment!r} is not a datetime with a time zone"
        raise InvalidMessage(why, field="created_at", remedy="Use datetime.now(UTC).")
    return moment.astimezone(UTC)


def as_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise InvalidMessage(f"{name}: expected text, got {type(value).__name__}", field=name)
