"""The checks of an event before it is recorded, and the row that is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from postroad.clock import Clock
from postroad.errors import InvalidMessage, MessageTooLarge
from postroad.events import (
    NUL,
    Codec,
    DomainEvent,
    EventRegistry,
    as_key,
    as_uuid,
    domain_json,
    ordering_key,
    place_of_nul,
)
from postroad.outbox.cipher import AesGcmCipher
from postroad.telemetry import traceparent, valid_traceparent

_TYPE: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_TENANT: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_FIELDS: Final[Mapping[str, Any]] = {}
_READ: Final[dict[str, Callable[[Any], Any]]] = {"key": as_key, "event_id": as_uuid}
_KEY_REMEDY: Final = 'Give the key that orders the event, as in key={"transferId": "tr_1"}.'


class Draft(msgspec.Struct, frozen=True):
    """A row to insert."""

    event_id: UUID
    event_type: str
    tenant: str | None
    lane: str
    body: str


class Drafts:
    """Turns events into rows, or raises InvalidMessage that names the field at fault."""

    def __init__(self, *, registry: EventRegistry, clock: Clock, cipher: AesGcmCipher | None, max_bytes: int) -> None:
        self._codec = Codec(registry, clock=clock)
        self._cipher = cipher
        self._max_bytes = max_bytes

    def draft(self, event: object, given: Mapping[str, Any] = _NO_FIELDS) -> Draft:
        """Return the row of the event; the fields that are given replace its own."""
        domain = _traced(self._domain(event, given))
        _check(domain)
        body = domain_json(domain, domain.payload)
        if NUL in body and (path := place_of_nul(msgspec.to_builtins(domain.payload), "payload")) is not None:
            raise InvalidMessage(f"{path}: holds the character NUL, which no database stores", field=path)
        if len(body) > self._max_bytes:
            raise MessageTooLarge(
                f"the event has {len(body):,} bytes, above the limit of {self._max_bytes:,}",
                field="payload",
                remedy="Record less data, or an id under which the rest can be found.",
            )
        if self._cipher is not None:
            body = domain_json(domain, self._cipher.sealed(domain, msgspec.json.encode(domain.payload)))
        return Draft(domain.event_id, domain.type, domain.tenant_id, ordering_key(domain.key), body.decode())

    def _domain(self, event: object, given: Mapping[str, Any]) -> DomainEvent:
        if type(event) is DomainEvent and not given:
            return event
        fields = {name: _READ[name](value) if name in _READ else value for name, value in given.items()}
        if isinstance(event, DomainEvent):
            return replace(event, **fields)
        if "key" not in fields:
            raise InvalidMessage("key: is missing", field="key", remedy=_KEY_REMEDY)
        wrapped = self._codec.wrap(event, publisher_id="outbox", event_id=fields.get("event_id"))
        own: dict[str, Any] = {"type": wrapped.event_type, "payload": wrapped.payload, "event_id": wrapped.event_id}
        return DomainEvent(**{**own, "occurred_at": wrapped.created_at, "v": wrapped.version, **fields})


def _traced(event: DomainEvent) -> DomainEvent:
    """Return the event with its own traceparent if that is valid, else with that of the current span."""
    if event.traceparent is None:
        current = traceparent()
        return event if current is None else replace(event, traceparent=current)
    return event if valid_traceparent(event.traceparent) else replace(event, traceparent=None)


def _check(event: Any) -> None:
    """Raise InvalidMessage for the first field that does not hold what its type says."""
    if not isinstance(event.type, str) or not _TYPE.fullmatch(event.type):
        raise _refused("type", f"{_shown(event.type)} is not 1 to 200 letters, digits or any of . _ : -")
    _check_key(event.key)
    tenant = event.tenant_id
    if tenant is not None and not (isinstance(tenant, str) and _TENANT.fullmatch(tenant)):
        raise _refused("tenant_id", f"{_shown(tenant)} is not 1 to 64 letters, digits or any of _ . -")
    if type(event.payload) is not dict and not isinstance(event.payload, Mapping):
        raise _refused("payload", f"{type(event.payload).__name__} is not a mapping")
    if not isinstance(event.event_id, UUID):
        raise _refused("event_id", f"{_shown(event.event_id)} is not a UUID")
    moment = event.occurred_at
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise _refused("occurred_at", f"{moment!r} is not a datetime with a time zone")
    if type(event.v) is not int or event.v < 1:
        raise _refused("v", f"{_shown(event.v)} is not a version")


def _check_key(key: object) -> None:
    if (type(key) is not dict and not isinstance(key, Mapping)) or not key:
        raise InvalidMessage("key: is missing or empty", field="key", remedy=_KEY_REMEDY)
    for text in (*key, *key.values()):
        if not isinstance(text, str) or not text:
            raise InvalidMessage(f"key: {_shown(text)} is not a text, or is empty", field="key", remedy=_KEY_REMEDY)
        if not text.isprintable() and any(each == "\0" or "\ud800" <= each <= "\udfff" for each in text):
            raise InvalidMessage(f"key: {text!r} holds NUL or a lone surrogate", field="key")


def _refused(field: str, why: str) -> InvalidMessage:
    return InvalidMessage(f"{field}: {why}", field=field, remedy="Correct it; nothing was recorded.")


def _shown(value: object) -> str:
    return repr(str(value)[:80])
