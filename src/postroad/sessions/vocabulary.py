"""Makes the events of sessions and main loops known to the registry of a bus."""

from __future__ import annotations

from postroad.errors import DeadlineExceeded, InvalidMessage, MessageTooLarge
from postroad.events import EventRegistry, default_registry, uuid7
from postroad.receiving import context_of
from postroad.sessions.requests import Budget, MainLoopCompleted, MainLoopFailed, MainLoopRequest
from postroad.sessions.telemetry import TELEMETRY, PromptResponse, TokenUsage, ToolResult

_VALUES = (TokenUsage, PromptResponse, ToolResult, Budget)
_CONTROL = (MainLoopRequest, MainLoopCompleted, MainLoopFailed)
_ERRORS = (DeadlineExceeded, InvalidMessage, MessageTooLarge)


def registry_of(bus: object) -> EventRegistry:
    """The registry by which the bus names types, else the default one; it knows the types of sessions afterwards."""
    found = getattr(bus, "registry", None)
    registry = found if isinstance(found, EventRegistry) else default_registry
    for cls in (*TELEMETRY, *_VALUES, *_CONTROL, *_ERRORS):
        known(cls, registry)
    return registry


def known(cls: type, registry: EventRegistry) -> str:
    """The name of the class in the registry, which learns it when it must."""
    return registry.known_name(cls) or registry.register(cls)


def event_id_of(event: object) -> str:
    """The id under which the event travels, else its own; one that has none is taken for a new event each time."""
    context = context_of(event)
    if context is not None:
        return str(context.envelope.event_id)
    own = getattr(event, "event_id", None)
    return str(uuid7() if own is None else own)


def session_id_of(event: object) -> str | None:
    """The session that the event names, if any."""
    context = context_of(event)
    own = getattr(event, "session_id", None)
    found = context.envelope.session_id if own is None and context is not None else own
    return None if found is None else str(found)
