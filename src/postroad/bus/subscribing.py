"""What may be subscribed to, and by whom."""

from __future__ import annotations

from postroad.events import EventRegistry
from postroad.events.registry import can_travel


def check_type(event_type: object) -> None:
    """Refuse what is not a class."""
    if not isinstance(event_type, type):
        raise TypeError(f"event_type: {event_type!r} is not a class; subscribe to the class of the event itself")


def check_handler(handler: object) -> None:
    """Refuse what cannot be called."""
    if not callable(handler):
        raise TypeError(f"handler: {handler!r} cannot be called; pass a function that takes the event")


def register(registry: EventRegistry, event_type: type[object]) -> None:
    """Let events of this type be read from messages; what is no event stays known to this process only."""
    if can_travel(event_type) and registry.known_name(event_type) is None:
        registry.register(event_type)
