"""Rows of the outbox as records, and why a row is not published yet."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from uuid import UUID

from postroad.connections.database import Row
from postroad.errors import InvalidInput
from postroad.outbox.dialects import moment
from postroad.outbox.rows import FAILED, PARKED, PENDING, SENT, SKIPPED, AuditEntry, EventId, KeyState, OutboxRow

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
KNOWN_STATES: Final = frozenset({PENDING, SENT, FAILED, PARKED, SKIPPED})


class Place(NamedTuple):
    """Where a row stands, as the database's own clock has it."""

    event_id: str
    state: str
    last_error: str | None
    due: bool
    next_attempt: Any
    leased_by: str | None
    """None when no lease on it lives."""
    lease_until: Any


def event_id_of(stored: object) -> EventId:
    """The id as a UUID where the table has it in the spelling of one, so that it is found under it again."""
    if isinstance(stored, UUID):
        return stored
    text = str(stored)
    return UUID(text) if _UUID.fullmatch(text) and text == str(UUID(text)) else text


def stored_id(given: EventId) -> str:
    """The id as the table has it: a UUID in its one spelling, any other text as it is."""
    text = str(given)
    if "\0" in text:
        raise InvalidInput("event_id: holds the character NUL, which no database stores", field="event_id")
    return str(UUID(text)) if _UUID.fullmatch(text) else text


def row_of(row: Row) -> OutboxRow:
    """The record of what {columns} selects."""
    identity, event_id, event_type, tenant, lane, state, attempts, error, due, created, updated, seq, redrives = row
    return OutboxRow(
        id=event_id_of(identity),
        event_id=event_id_of(event_id),
        event_type=event_type,
        tenant_id=tenant,
        lane=lane,
        state=state,
        # Below zero only by somebody's SQL; a dispatcher counts from zero then.
        attempts=max(attempts, 0),
        last_error=error,
        next_attempt=moment(due),
        created_at=moment(created),
        updated_at=moment(updated),
        seq=seq,
        redrives=redrives,
    )


def audit_of(row: Row) -> AuditEntry:
    """The record of one line of the audit."""
    seq, at, actor, action, event_id, reason, before, after = row
    return AuditEntry(seq, moment(at), actor, action, event_id_of(event_id), reason, before, after)


def key_of(tenant: str, lane: str, head: Place, behind: int) -> KeyState:
    """The record of a key with this head."""
    return KeyState(tenant or None, lane, event_id_of(head.event_id), head.state, standing(head) or "ready", behind)


def standing(row: Place) -> str | None:
    """What is to be said of the row by itself; None when it only waits for others or could be published."""
    if row.state == SENT:
        return "sent"
    if row.state == SKIPPED:
        return "skipped"
    if row.state == FAILED:
        return f"failed: {row.last_error or 'for no recorded reason'}"
    if row.state == PARKED:
        return "parked"
    if row.state not in KNOWN_STATES:
        return f"failed: unknown state {row.state!r}"
    if row.leased_by is not None:
        return f"leased by {row.leased_by} until {moment(row.lease_until).isoformat()}"
    if not row.due:
        return f"waiting until {moment(row.next_attempt).isoformat()}"
    return None


def why(row: Place, head: Place, target_error: str | None) -> str:
    """One sentence on what the row waits for; `head` is the first row of its key that is not done."""
    if row.state == PARKED:
        return f"blocked by {head.event_id} (parked)"
    if row.state != PENDING or row.leased_by is not None:
        return standing(row) or "ready"
    held = head.event_id != row.event_id
    if target_error is not None and head.state == PENDING:
        return f"target unavailable: {target_error}"
    return f"blocked by {head.event_id}" if held else standing(row) or "ready"
