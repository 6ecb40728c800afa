"""The event bus: typed publish and subscribe, in one process and across many."""

from postroad.bus.archive import Archive
from postroad.bus.aws import EventBridgeEventBus, SNSEventBus, SQSEventBus, SQSEventBusWithCircuitBreaker
from postroad.bus.config import BusConfig, SQSEventBusConfig
from postroad.bus.deduplication import DeduplicatingEventBus, DeduplicationCache
from postroad.bus.groups import Group as Group
from postroad.bus.kinesis import KinesisEventBus
from postroad.bus.local import ControlBus, EventBus, HandlerFailure, InProcessEventBus, PublishResult, TelemetryBus
from postroad.bus.publisher import attributes_of as attributes_of
from postroad.bus.remote import RemoteEventBus
from postroad.bus.replay import ArchivedEvent, ReplayReport
from postroad.bus.subscriptions import EventHandler, Middleware
from postroad.bus.telemetry import BusHealth
from postroad.bus.topic import Bus, TopicEventBus
from postroad.errors import (
    CircuitOpenError,
    ConfigurationError,
    DuplicateInProgress,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    NotSent,
    OutOfOrder,
    PublishFailed,
    TransportError,
)
from postroad.receiving import CircuitBreakerConfig, HandlingContext, current_context

__all__ = [
    "Archive",
    "ArchivedEvent",
    "Bus",
    "BusConfig",
    "BusHealth",
    "CircuitBreakerConfig",
    "CircuitOpenError",
    "ConfigurationError",
    "ControlBus",
    "DeduplicatingEventBus",
    "DeduplicationCache",
    "DuplicateInProgress",
    "EventBridgeEventBus",
    "EventBus",
    "EventHandler",
    "HandlerFailure",
    "HandlingContext",
    "InProcessEventBus",
    "InvalidMessage",
    "InvalidName",
    "KinesisEventBus",
    "MessageTooLarge",
    "Middleware",
    "NotSent",
    "OutOfOrder",
    "PublishFailed",
    "PublishResult",
    "RemoteEventBus",
    "ReplayReport",
    "SNSEventBus",
    "SQSEventBus",
    "SQSEventBusConfig",
    "SQSEventBusWithCircuitBreaker",
    "TelemetryBus",
    "TopicEventBus",
    "TransportError",
    "current_context",
]
