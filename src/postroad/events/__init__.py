"""Typed events: their names, their envelope and the one codec."""

from postroad.errors import RemoteError
from postroad.events.codec import Codec, Tagging as Tagging, codec
from postroad.events.decorators import event, upcast
from postroad.events.domain import (
    OUTBOX as OUTBOX,
    TASK_ROW as TASK_ROW,
    DomainEvent,
    as_key as as_key,
    domain_json as domain_json,
    ordering_key as ordering_key,
)
from postroad.events.envelope import (
    MAX_BYTES as MAX_BYTES,
    NUL as NUL,
    Envelope,
    UUID7Source,
    as_uuid as as_uuid,
    checked_bytes as checked_bytes,
    envelope_of as envelope_of,
    explained as explained,
    is_strict as is_strict,
    place_of_nul as place_of_nul,
    refusal as refusal,
    refuse_what_json_cannot_hold as refuse_what_json_cannot_hold,
    repeated_key as repeated_key,
    sendable as sendable,
    unsendable as unsendable,
    uuid7,
    uuid7_of as uuid7_of,
)
from postroad.events.models import is_model as is_model
from postroad.events.registry import (
    EventRegistry,
    can_travel as can_travel,
    default_registry,
    never_an_event as never_an_event,
)
from postroad.events.shapes import (
    Shape as Shape,
    checked_name as checked_name,
    field_types as field_types,
    is_union as is_union,
    nodes_of as nodes_of,
)

__all__ = [
    "Codec",
    "DomainEvent",
    "Envelope",
    "EventRegistry",
    "RemoteError",
    "UUID7Source",
    "codec",
    "default_registry",
    "event",
    "upcast",
    "uuid7",
]
