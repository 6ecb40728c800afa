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
    """The id of the row."""
    event_id: EventId
    """The id of the event."""
    event_type: str
    """Its type."""
    tenant_id: str | None
    """Its tenant."""
    lane: str
    """The text of its key."""
    state: str
    """PENDING, SENT, FAILED, PARKED or SKIPPED."""
    attempts: int
    """Attempts since it was recorded or redriven."""
    last_error: str | None
    """The error of the last one."""
    next_attempt: datetime
    """When the next one is due."""
    created_at: datetime
    """When it was recorded."""
    updated_at: datetime
    """When it last changed."""
    seq: int
    """Its place in the order of the commits of its key."""
    redrives: int
    """How often it was redriven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """How many rows the outbox holds in each state, how old they are and what blocks them."""

    pending: int
    """Rows that wait."""
    sent: int
    """Rows that were not pruned yet; estimated, as `skipped` is, if more than 100,000 are done."""
    failed: int
    """FAILED rows, and rows in a state that Postroad does not know."""
    parked: int
    """Rows behind a failed one under the policy `park`."""
    skipped: int
    """Rows that were given up."""
    blocked_keys: int
    """Keys whose first row is not due or has failed: as many as `Outbox.keys` lists."""
    oldest_pending_seconds: float
    """The age of the oldest row that waits."""
    oldest_open_transaction_seconds: float
    """Age of the oldest open transaction that has added an event."""
    target_error: str | None
    """What the topic answered last, if it is unavailable."""
    dead_tuples: int
    """Rows of the table that PostgreSQL has not removed yet."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key, its first row that is not done, and why none of its rows is published now."""

    tenant_id: str | None
    """The tenant."""
    lane: str
    """The text of the key."""
    head: EventId
    """The first event that is not done."""
    state: str
    """Its state."""
    reason: str
    """Why it is not published."""
    waiting: int
    """Rows behind the head that are not done."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed rows of one type and one kind of error, so that a thousand rows read as three problems."""

    group: str
    """What identifies the group."""
    event_type: str
    """The type of the events."""
    count: int
    """How many rows there are."""
    error: str | None
    """The last error of the oldest of them."""
    oldest: EventId
    """The id of the oldest event."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What an operator did to an event, and why."""

    seq: int
    """Its number."""
    at: datetime
    """When."""
    actor: str
    """Who."""
    action: str
    """What was done."""
    event_id: EventId
    """To which event."""
    reason: str
    """Why."""
    before: str
    """The event's state before."""
    after: str
    """Its state after."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay."""

    selected: int
    """Events that fit the filters; a dry run publishes none of them."""
    replayed: int = 0
    """Events that were published again."""
    failed: int = 0
    """Events that could not be published. Later events of their keys are not tried."""
    held: int = 0
    """Events behind a failed one of their key."""
    last_error: str | None = None
    """The error of the last one that failed."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Which sent events a consumer has handled, which it lacks, and which it has that were never recorded here."""

    ok: int
    """How many sent events the consumer has handled."""
    missing: list[UUID] = field(default_factory=list)
    """Sent events that the consumer lacks."""
    unknown: list[UUID] = field(default_factory=list)
    """Events of the consumer that were never recorded here."""
