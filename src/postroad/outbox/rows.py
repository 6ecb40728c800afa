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
    """One event of the outbox and its state.

    Attributes:
        id: The id of the row.
        event_id: The id of the event.
        event_type: Its type.
        tenant_id: Its tenant.
        lane: The text of its key.
        state: PENDING, SENT, FAILED, PARKED or SKIPPED.
        attempts: Attempts since it was recorded or redriven.
        last_error: The error of the last one.
        next_attempt: When the next one is due.
        created_at: When it was recorded.
        updated_at: When it last changed.
        seq: Its place in the order of the commits of its key.
        redrives: How often it was redriven.
    """

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
    """How many rows the outbox holds in each state, how old they are and what blocks them.

    Attributes:
        pending: Rows that wait.
        parked: Rows behind a failed one under the policy `park`.
        skipped: Rows that were given up.
        oldest_pending_seconds: The age of the oldest row that waits.
        target_error: What the topic answered last, if it is unavailable.
        dead_tuples: Rows of the table that PostgreSQL has not removed yet.
    """

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
    """One key, its first row that is not done, and why none of its rows is published now.

    Attributes:
        tenant_id: The tenant.
        lane: The text of the key.
        head: The first event that is not done.
        state: Its state.
        reason: Why it is not published.
    """

    tenant_id: str | None
    lane: str
    head: EventId
    state: str
    reason: str
    waiting: int
    """Rows behind the head that are not done."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed rows of one type and one kind of error, so that a thousand rows read as three problems.

    Attributes:
        group: What identifies the group.
        event_type: The type of the events.
        count: How many rows there are.
        oldest: The id of the oldest event.
    """

    group: str
    event_type: str
    count: int
    error: str | None
    """The last error of the oldest of them."""
    oldest: EventId


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What an operator did to an event, and why.

    Attributes:
        seq: Its number.
        at: When.
        actor: Who.
        action: What was done.
        event_id: To which event.
        reason: Why.
        before: The event's state before.
        after: Its state after.
    """

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
    """The result of a replay.

    Attributes:
        replayed: Events that were published again.
        last_error: The error of the last one that failed.
    """

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
    """Which sent events a consumer has handled, which it lacks, and which it has that were never recorded here.

    Attributes:
        ok: How many sent events the consumer has handled.
        missing: Sent events that the consumer lacks.
        unknown: Events of the consumer that were never recorded here.
    """

    ok: int
    missing: list[UUID] = field(default_factory=list)
    unknown: list[UUID] = field(default_factory=list)
