"""The outbox as the HTTP API answers it and the dashboard shows it: the documents of the commands."""

from __future__ import annotations

import msgspec


class OutboxStatusShown(msgspec.Struct):
    """How many rows the outbox holds in each state, how old they are and what blocks them."""

    pending: int
    sent: int
    failed: int
    parked: int
    skipped: int
    blocked_keys: int
    oldest_pending_seconds: float
    oldest_open_transaction_seconds: float
    target_error: str | None
    dead_tuples: int


class OutboxKeyRow(msgspec.Struct):
    """A key that is held back: its first event that is not done, why, and how many wait behind it."""

    tenant_id: str | None
    lane: str
    head: str
    state: str
    reason: str
    waiting: int


class OutboxKeyPage(msgspec.Struct):
    """Keys that are held back."""

    items: list[OutboxKeyRow]
    next_cursor: str | None


class OutboxShown(msgspec.Struct):
    """What `outbox status` and `outbox keys` print."""

    status: OutboxStatusShown
    keys: OutboxKeyPage


class OutboxRedriven(msgspec.Struct):
    """The ids of the events that are published again, or would be."""

    redriven: list[str]
    dry_run: bool


class OutboxSkipped(msgspec.Struct):
    """The id of the event that was given up."""

    skipped: str


class EventPublished(msgspec.Struct):
    """The id of the event that was published."""

    event_id: str
