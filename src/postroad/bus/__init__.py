"""The event bus: typed publish and subscribe, in one process and across many."""

from postroad.bus.context import HandlingContext, current_context
from postroad.bus.local import ControlBus, EventBus, InProcessEventBus, TelemetryBus
from postroad.bus.result import EventHandler, HandlerFailure, PublishResult
from postroad.errors import CircuitOpenError, DuplicateInProgress, NotSent, OutOfOrder, PublishFailed

__all__ = [
    "CircuitOpenError",
    "ControlBus",
    "DuplicateInProgress",
    "EventBus",
    "EventHandler",
    "HandlerFailure",
    "HandlingContext",
    "InProcessEventBus",
    "NotSent",
    "OutOfOrder",
    "PublishFailed",
    "PublishResult",
    "TelemetryBus",
    "current_context",
]
