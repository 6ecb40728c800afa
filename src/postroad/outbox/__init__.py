"""Outbox: events are recorded in the caller's own database transaction, and published from there to a topic."""

from postroad.events import DomainEvent
from postroad.outbox.cipher import AesGcmCipher
from postroad.outbox.dispatching import (
    DispatcherConfig,
    DispatchReport,
    OutboxDispatcher,
    Publisher,
    bus_name,
    group_id,
)
from postroad.outbox.outbox import Outbox
from postroad.outbox.rows import (
    AuditEntry,
    FailureGroup,
    KeyState,
    OutboxRow,
    OutboxStatus,
    Reconciliation,
    ReplayReport,
)
from postroad.outbox.schema import Tables as Tables, moment as moment

__all__ = [
    "AesGcmCipher",
    "AuditEntry",
    "DispatchReport",
    "DispatcherConfig",
    "DomainEvent",
    "FailureGroup",
    "KeyState",
    "Outbox",
    "OutboxDispatcher",
    "OutboxRow",
    "OutboxStatus",
    "Publisher",
    "Reconciliation",
    "ReplayReport",
    "bus_name",
    "group_id",
]
