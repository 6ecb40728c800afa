"""Typed events: their names, their envelope and the one codec."""

from postroad.errors import RemoteError
from postroad.events.domain import DomainEvent
from postroad.events.encoding import Codec, codec
from postroad.events.envelope import Envelope
from postroad.events.event import event
from postroad.events.ids import UUID7Source, uuid7
from postroad.events.registry import EventRegistry, default_registry
from postroad.events.upcast import upcast

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
