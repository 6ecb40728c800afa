"""The records that an outbox returns about its rows, its keys and itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

PENDING: Final = "PENDING"
SENT: Final = "SENT"
FAILED: Final = "FAILED"
PARKED: Final = "PARKED"
SKIPPED: Final = "SKIPPED"

EventId = UUID | str
"""The id in the envelope; text where a row written by plain SQL holds something else."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One event of the outbox and its state."""

    id: EventId
    event_id: EventId
    event_type: str
    tenant_id: str | None
    lane: str
    state: str
    attempts: int
    last_error: str | None
    next_attempt: datetime
    created_at: datetime
    updated_at: datetime
    seq: int
    redrives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """How many rows the outbox holds in each state, how old they are and what blocks them."""

    pending: int
    sent: int
    """Rows that were not pruned yet; estimated, as `skipped` is, if more than 100,000 are done."""
    failed: int
    """FAILED rows, and rows in a state that Postroad does not know."""
    parked: int
    skipped: int
    blocked_keys: int
    """Keys whose first row is not due or has failed: as many as `Outbox.keys` lists."""
    oldest_pending_seconds: float
    oldest_open_transaction_seconds: float
    """Age of the oldest open transaction that has added an event."""
    target_error: str | None
    dead_tuples: int


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key, its first row that is not done, and why none of its rows is published now."""

    tenant_id: str | None
    lane: str
    head: EventId
    state: str
    reason: str
    waiting: int
    """Rows behind the head that are not done."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed rows of one type and one kind of error, so that a thousand rows read as three problems."""

    group: str
    event_type: str
    count: int
    error: str | None
    """The last error of the oldest of them."""
    oldest: EventId


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What an operator did to an event, and why."""

    seq: int
    at: datetime
    actor: str
    action: str
    event_id: EventId
    reason: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay."""

    selected: int
    """Events that fit the filters; a dry run publishes none of them."""
    replayed: int = 0
    failed: int = 0
    """Events that could not be published. Later events of their keys are not tried."""
    held: int = 0
    """Events behind a failed one of their key."""
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Which sent events a consumer has handled, which it lacks, and which it has that were never recorded here."""

    ok: int
    missing: list[UUID] = field(default_factory=list)
    unknown: list[UUID] = field(default_factory=list)
