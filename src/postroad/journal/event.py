"""One entry of the journal: what happened to an entity of a tenant, and when; every field is checked."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from types import NoneType
from typing import Any, Final, Self, Union
from uuid import UUID

import msgspec

from postroad.arguments import check, shown, text
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidEvent, OverflowMismatch
from postroad.events import refusal, unsendable, uuid7_of
from postroad.journal.events import EVENT_CLASSES, ID_NAMES, ID_PATTERN, MAX_TIMESTAMP, MIN_TIMESTAMP, Properties
from postroad.journal.keys import KEY_NAMES, keys_of
from postroad.settings import Settings

DEFAULT_APP: Final = Settings().app
OVERFLOW: Final = "_s3Overflow"
"""The property that points to a blob with the other properties."""
ATTRIBUTES: Final = (
    *KEY_NAMES,
    *("entityId", "entityType", "tenantId", "eventType", "timestamp", "context", "properties"),
)
MAX_DEPTH: Final = 64
Id = text(ID_PATTERN, "an id", remedy="Use 1 to 256 letters, digits, '_', '.', ':' or '-'.")
_ID = re.compile(ID_PATTERN)
_ENTITY_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_EntityType = text(
    _ENTITY_TYPE.pattern, "the type of an entity", remedy="Name it in capitals, such as TASK, JOB or STORE."
)
_EVENT_TYPE = re.compile(r"[^\s#]+( [^\s#]+)*")
_MAX_EVENT_TYPE = 128
_SCALARS = frozenset({str, int, bool, NoneType})
_TEXT = frozenset({str})
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(dict[str, Any])
_made = itertools.count()
# Ids repeat: an id that was accepted before costs only a look-up.
_remembered = functools.lru_cache(maxsize=2_048, typed=True)


class JournalEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened; it is never changed.

    Attributes:
        event_type: What happened, such as `Task Completed`.
        entity_type: What it happened to: task or job.
        entity_id: Its id.
        tenant_id: The tenant.
        app: The application.
        event_id: The id of the event, which has its time.
        context: Who recorded it, and where.
        properties: What is known about it.
    """

    event_type: str
    entity_type: str
    entity_id: str
    tenant_id: str
    app: str
    timestamp: int
    """Milliseconds since 1970."""
    event_id: UUID
    context: dict[str, Any]
    properties: dict[str, Any]
    received_at: int | None = None
    """When the journal stored it, in milliseconds; None before."""
    ttl: int | None = None
    """When the store may delete it, in seconds since 1970."""
    overflow_error: str | None = None
    """Why the properties in a blob could not be read; the other properties and the pointer to the blob are present."""

    @classmethod
    def create(
        cls,
        event_type: str,
        *,
        tenant_id: str,
        entity_id: str,
        properties: Mapping[str, Any] | msgspec.Struct,
        entity_type: str | None = None,
        app: str | None = None,
        context: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        event_id: UUID | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Return a new, checked event.

        Args:
            event_type: The type, such as "Task Completed"; the types of `journal.events` have checked properties.
            tenant_id: The tenant that the event belongs to.
            entity_id: The id of the task, job or other entity.
            properties: A JSON object, or an instance of one of the classes of `journal.events`.
            entity_type: The type of the entity in capitals; by default it follows from a known `event_type`.
            app: The app that recorded it; by default the default of the settings.
            context: A JSON object about the origin; by default `{"source": "system"}`.
            timestamp: When it happened, in milliseconds since 1970; by default now.
            event_id: Its id; by default a new UUIDv7. Pass the same id to record an event only once.
            clock: The clock for the default of `timestamp`.

        Raises:
            InvalidEvent: A field is not valid; `field` names it.

        Example:
            JournalEvent.create("Store Opened", entity_type="STORE", tenant_id="acme", entity_id="s1", properties={})
        """
        moment = int(clock.now().timestamp() * 1000) if timestamp is None else timestamp
        _check_timestamp(moment)
        _check_event_type(event_type)
        event = cls(
            event_type=event_type,
            entity_type=_entity_type_of(event_type) if entity_type is None else entity_type,
            entity_id=entity_id,
            tenant_id=tenant_id,
            app=DEFAULT_APP if app is None else app,
            timestamp=moment,
            event_id=new_event_id(moment) if event_id is None else event_id,
            context=_json_copy({"source": "system"} if context is None else context, "context"),
            properties=_json_copy(properties, "properties"),
        )
        check_names(event)
        check_content(event)
        return event

    def to_item(self) -> dict[str, Any]:
        """Return the item of the events table with its keys; once stored, with the time of storing."""
        item: dict[str, Any] = {
            **keys_of(self),
            "entityId": self.entity_id,
            "entityType": self.entity_type,
            "tenantId": self.tenant_id,
            "eventType": self.event_type,
            "timestamp": self.timestamp,
            "context": self.context,
            "properties": self.properties,
        }
        if self.received_at is not None:
            item["receivedAt"] = self.received_at
        if self.ttl is not None:
            item["ttl"] = self.ttl
        return item

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """Return the event of `item`; its id and app are read from the keys."""
        try:
            return cls(
                event_type=item["eventType"],
                entity_type=item["entityType"],
                entity_id=item["entityId"],
                tenant_id=item["tenantId"],
                app=item["GSI2PK"].removeprefix("APP#"),
                timestamp=item["timestamp"],
                event_id=UUID(item["SK"].rpartition("#")[2]),
                context=item["context"],
                properties=item["properties"],
                received_at=item.get("receivedAt"),
                ttl=item.get("ttl"),
            )
        except KeyError as error:
            raise InvalidEvent(f"{error.args[0]}: is missing", field=error.args[0]) from None
        except (AttributeError, TypeError, ValueError):
            raise InvalidEvent("item: its keys do not hold an event id and an app", field="SK") from None


def own_event(
    event_type: str,
    *,
    tenant_id: str,
    entity_id: str,
    app: str,
    context: dict[str, Any],
    properties: dict[str, Any],
    timestamp: int,
) -> JournalEvent:
    """Return what `JournalEvent.create` does, of a context and properties that nobody changes later: not a copy."""
    if not is_simple(properties):
        properties = _plain(properties)
    event = JournalEvent(
        event_type=event_type,
        entity_type=_entity_type_of(event_type),
        entity_id=entity_id,
        tenant_id=tenant_id,
        app=app,
        timestamp=timestamp,
        event_id=new_event_id(timestamp),
        context=context,
        properties=properties,
    )
    check_event(event)
    return event


def new_event_id(timestamp: int) -> UUID:
    """Return a new id of this millisecond, greater than every id that this process made for it before."""
    # The counter never restarts: a sender may return to an earlier millisecond.
    counter = next(_made) & 0xFFFFFFFF
    return uuid7_of(timestamp, counter << 42 | _process)


def _draw() -> None:
    """Draw the bits by which the ids of this process differ from those of any other, also from those of its parent."""
    global _process
    _process = int.from_bytes(os.urandom(5), "big")


_process = 0
_draw()
os.register_at_fork(after_in_child=_draw)


def whole(event: JournalEvent) -> JournalEvent:
    """Return the event, or raise `OverflowMismatch` if part of it could not be read."""
    if event.overflow_error is not None:
        raise OverflowMismatch(event.overflow_error, event_id=event.event_id)
    return event


def _entity_type_of(event_type: str) -> str:
    first = event_type.partition(" ")[0]
    if event_type == "Task Health Check":
        return "HEALTH"
    if first in ("Task", "Job"):
        return first.upper()
    raise InvalidEvent(
        f"entity_type: it does not follow from the event type {event_type!r}",
        field="entity_type",
        remedy="Name the type of the entity, such as entity_type='STORE'.",
    )


def check_event(event: JournalEvent, *, packed: bool = False) -> None:
    """Raise `InvalidEvent` unless the event is valid. `packed`: part of its properties may be in a blob."""
    check_names(event)
    for field, value in (("context", event.context), ("properties", event.properties)):
        if _encoded(value) is None:
            raise _not_json(value, field)
    check_content(event, packed=packed)


def check_names(event: JournalEvent) -> None:
    """Raise `InvalidEvent` if the time, the type or an id is not valid."""
    _check_timestamp(event.timestamp)
    if not isinstance(event.event_id, UUID):
        raise InvalidEvent(f"event_id: {event.event_id!r} is not a UUID", field="event_id")
    try:
        # Most events are of a task that was seen a moment ago.
        known = _are_names(event.event_type, event.entity_type, event.tenant_id, event.entity_id, event.app)
    except TypeError:
        known = False
    if not known:
        _check_event_type(event.event_type)
        check(event.entity_type, _EntityType, "entity_type", InvalidEvent)
        for name in ("tenant_id", "entity_id", "app"):
            check(getattr(event, name), Id, name, InvalidEvent)


def check_content(event: JournalEvent, *, packed: bool = False) -> None:
    """Raise `InvalidEvent` for wrong or missing properties of a known type, or for a foreign pointer to a blob."""
    properties, entity_id = event.properties, event.entity_id
    overflowed = OVERFLOW in properties
    if overflowed and not packed:
        raise InvalidEvent(
            f"properties.{OVERFLOW}: is reserved for the journal",
            field=f"properties.{OVERFLOW}",
            remedy="Leave it out; the journal moves large properties to blobs by itself.",
        )
    if (known := EVENT_CLASSES.get(event.event_type)) is None:
        return
    try:
        msgspec.convert(properties, _partial(known) if overflowed else known)
    except msgspec.ValidationError as error:
        refused = refusal(error, root="properties")
        raise InvalidEvent(refused.message, field=refused.field) from None
    for name in ID_NAMES:
        # The entity's id was checked before, and most properties repeat it.
        value = properties.get(name, entity_id)
        if not (value is None or value == entity_id or (isinstance(value, str) and _is_id(value))):
            check(value, Id, f"properties.{name}", InvalidEvent)


@functools.cache
def _partial(cls: type[Properties]) -> type[msgspec.Struct]:
    """Return a class with the same properties, each of which may be absent because it is in a blob."""
    fields: list[tuple[str, Any, Any]] = [
        (field.encode_name, Union[field.type, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007  # built, not written
        for field in msgspec.structs.fields(cls)
    ]
    return msgspec.defstruct(f"PartOf{cls.__name__}", fields, frozen=True, kw_only=True)


@_remembered
def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


@_remembered
def is_entity_type(value: object) -> bool:
    """Return whether this can be the type of an entity, such as TASK, JOB or STORE."""
    return isinstance(value, str) and _ENTITY_TYPE.fullmatch(value) is not None


@_remembered
def is_event_type(value: object) -> bool:
    """Return whether this can be the type of an event, known or not: words with single spaces between them."""
    fits = isinstance(value, str) and len(value) <= _MAX_EVENT_TYPE and value.isprintable()
    return fits and _EVENT_TYPE.fullmatch(str(value)) is not None


@_remembered
def _are_names(event_type: str, entity_type: str, tenant_id: str, entity_id: str, app: str) -> bool:
    ids = _is_id(tenant_id) and _is_id(entity_id) and _is_id(app)
    return ids and is_event_type(event_type) and is_entity_type(entity_type)


def _check_event_type(value: object) -> None:
    if not (isinstance(value, str) and is_event_type(value)):
        raise InvalidEvent(
            f"event_type: {shown(value)} is not the type of an event",
            field="event_type",
            remedy=f"Use words with single spaces between them, without '#', {_MAX_EVENT_TYPE} characters at most.",
        )


def _check_timestamp(value: object) -> None:
    if type(value) is int and MIN_TIMESTAMP <= value <= MAX_TIMESTAMP:
        return
    raise InvalidEvent(
        f"timestamp: {shown(value)} is not a whole number of milliseconds since 1970 with 13 digits",
        field="timestamp",
        remedy="Give milliseconds, not seconds: int(time.time() * 1000).",
    )


def is_simple(value: object, levels: int = MAX_DEPTH) -> bool:
    """Return whether this is a JSON object or array. The encoder checks its texts."""
    if levels < 1:
        return False
    if type(value) is dict:
        return _TEXT.issuperset(map(type, value)) and _are_simple(value.values(), levels - 1)
    return type(value) is list and _are_simple(value, levels - 1)


def _are_simple(children: Iterable[Any], levels: int) -> bool:
    if _SCALARS.issuperset(map(type, children)):
        return True
    for child in children:
        kind = type(child)
        if kind not in _SCALARS and not (isfinite(child) if kind is float else is_simple(child, levels)):
            return False
    return True


def _json_copy(value: object, field: str) -> dict[str, Any]:
    """Return a deep copy of the JSON object, so that the caller cannot change it later, or raise `InvalidEvent`."""
    encoded = _encoded(value)
    if encoded is None:
        plain = _plain(value)
        if (encoded := _encoded(plain)) is None:
            raise _not_json(plain, field)
    return _DECODER.decode(encoded)


def _encoded(value: object) -> bytes | None:
    """Return the object as JSON; None if it is not a JSON object."""
    if type(value) is not dict or not is_simple(value):
        return None
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Return the value with tuples as lists, and mappings as dictionaries."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, list | tuple) else value


def _not_json(value: object, field: str) -> InvalidEvent:
    found = unsendable(value, path=field, levels=MAX_DEPTH, why=TypeError("is not a JSON object"), plain=True)
    return InvalidEvent(found.message, field=found.field)
