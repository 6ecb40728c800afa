"""Makes the events of sessions and main loops known to the registry of a bus."""

from __future__ import annotations

from postroad.errors import DeadlineExceeded, InvalidMessage, MessageTooLarge
from postroad.events import EventRegistry, default_registry
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
