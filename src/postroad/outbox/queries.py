"""What an operator asks of an outbox: rows as records, and why one is not published yet. Nothing here changes it."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from uuid import UUID

from postroad.connections import Database, Row, Session
from postroad.errors import InvalidInput
from postroad.outbox.dialects import Phrases, moment
from postroad.outbox.rows import (
    FAILED,
    PARKED,
    PENDING,
    SENT,
    SKIPPED,
    AuditEntry,
    EventId,
    KeyState,
    OutboxRow,
    OutboxStatus,
)

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


_GET: Final = "SELECT {columns} FROM {outbox} WHERE event_id = ?"
_FAILED: Final = """
SELECT {columns} FROM {outbox}
 WHERE state NOT IN ('PENDING', 'PARKED', 'SENT', 'SKIPPED') AND seq > ? ORDER BY seq LIMIT ?
"""
_SEQ: Final = "SELECT seq FROM {outbox} WHERE event_id = ?"
_AUDIT: Final = "SELECT seq, at, actor, action, event_id, reason, before, after FROM {audit} ORDER BY seq DESC LIMIT ?"

_PENDING: Final = """
SELECT count(*), {age} FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED') AND state = 'PENDING'
"""
_PARKED: Final = "SELECT count(*) FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED') AND state = 'PARKED'"
_DEAD: Final = "SELECT count(*) FROM {outbox} WHERE state NOT IN ('PENDING', 'PARKED', 'SENT', 'SKIPPED')"
# Rows that are done grow without bound, so they are counted up to a number only, and estimated from there on: by the
# size that PostgreSQL keeps of their index, or by the numbers of SQLite's rows, of which prune takes the lowest.
_DONE: Final = """
SELECT count(CASE WHEN state = 'SENT' THEN 1 END), count(CASE WHEN state = 'SKIPPED' THEN 1 END)
  FROM (SELECT state FROM {outbox} WHERE state IN ('SENT', 'SKIPPED') LIMIT ?) AS done
"""
_DONE_IN_ALL: Final = {
    "postgresql": "SELECT reltuples FROM pg_class WHERE oid = to_regclass('{schema}.{table}_done')",
    "sqlite": "SELECT (SELECT max(rowid) FROM {outbox}) - (SELECT min(rowid) FROM {outbox}) + 1"
    " - (SELECT count(*) FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED'))",
}
_MOST_COUNTED: Final = 100_000
_META: Final = "SELECT target_error, policy = 'skip' FROM {meta}"
_OPEN_TRANSACTIONS: Final = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - activity.xact_start)), 0)
  FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
 WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2
   AND held.classid::bigint = ? AND held.objid::bigint < 2048
   AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_DEAD_TUPLES: Final = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = ? AND relname = ?"

_KEYS: Final = """
SELECT o.key_tenant, o.lane, o.of_key, {place} FROM (
  SELECT *, coalesce(tenant, '') AS key_tenant, row_number() OVER (PARTITION BY coalesce(tenant, ''), lane ORDER BY seq)
         AS place_in_key, count(*) OVER (PARTITION BY coalesce(tenant, ''), lane) AS of_key
    FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED') AND {holds}
) AS o
 WHERE o.place_in_key = 1 AND (? = 0 OR o.state <> 'PENDING' OR o.next_attempt > {now})
 ORDER BY o.seq LIMIT ?
"""
_ONE: Final = "SELECT coalesce(o.tenant, ''), o.lane, {place} FROM {outbox} AS o WHERE o.event_id = ?"
_HEAD: Final = """
SELECT {place} FROM {outbox} AS o
 WHERE o.state NOT IN ('SENT', 'SKIPPED') AND o.held IN (0, 1, 2) AND coalesce(o.tenant, '') = ? AND o.lane = ?
   AND {holds} ORDER BY o.seq LIMIT 1
"""
_ALL: Final = 2**31 - 1


class Looking:
    """Questions to one outbox, each answered by one look at the database."""

    def __init__(self, database: Database, words: Phrases) -> None:
        self._database = database
        self._words = words

    def get(self, event_id: EventId) -> OutboxRow | None:
        """The row of the event; None when there is none."""
        with self._database.reading() as session:
            rows = session.rows(self._words(_GET), (stored_id(event_id),))
        return row_of(rows[0]) if rows else None

    def failed(self, *, limit: int, after: EventId | int | None) -> list[OutboxRow]:
        """Rows that failed or are in an unknown state, oldest first, behind the event `after`."""
        with self._database.reading() as session:
            seq = after if isinstance(after, int) else self._seq(session, after)
            return [row_of(row) for row in session.rows(self._words(_FAILED), (seq, limit))]

    def audit(self, *, limit: int) -> list[AuditEntry]:
        """What was done by hand, the newest first."""
        with self._database.reading() as session:
            return [audit_of(row) for row in session.rows(self._words(_AUDIT), (limit,))]

    def keys(self, *, blocked: bool, limit: int) -> list[KeyState]:
        """Keys whose head is not free to go, or all that are not done, the oldest head first."""
        with self._database.reading() as session:
            return self._keys(session, blocked, limit)

    def why(self, event_id: EventId) -> str:
        """One sentence on what the event waits for."""
        with self._database.reading() as session:
            found = session.rows(self._words(_ONE), (stored_id(event_id),))
            if not found:
                return f"unknown: no event {event_id} is recorded here"
            tenant, lane, *place = found[0]
            row = Place(*place)
            heads = session.rows(self._words(_HEAD), (tenant, lane))
            target_error = session.rows(self._words(_META))[0][0]
        return why(row, Place(*heads[0]) if heads else row, target_error)

    def status(self) -> OutboxStatus:
        """How much there is of everything."""
        with self._database.reading() as session:
            pending, age = session.rows(self._words(_PENDING))[0]
            sent, skipped = self._done(session)
            return OutboxStatus(
                pending=pending,
                sent=sent,
                failed=session.rows(self._words(_DEAD))[0][0],
                parked=session.rows(self._words(_PARKED))[0][0],
                skipped=skipped,
                blocked_keys=len(self._keys(session, True, _ALL)),
                oldest_pending_seconds=max(float(age), 0.0),
                oldest_open_transaction_seconds=self._oldest_open_transaction(session),
                target_error=session.rows(self._words(_META))[0][0],
                dead_tuples=self._dead_tuples(session),
            )

    def _done(self, session: Session) -> tuple[int, int]:
        """How many rows were sent and skipped; an estimate where there are more than 100,000."""
        sent, skipped = session.rows(self._words(_DONE), (_MOST_COUNTED,))[0]
        if sent + skipped < _MOST_COUNTED:
            return sent, skipped
        in_all = int(session.rows(self._words(_DONE_IN_ALL[self._words.dialect]))[0][0])
        return sent * max(in_all, _MOST_COUNTED) // _MOST_COUNTED, skipped * max(in_all, _MOST_COUNTED) // _MOST_COUNTED

    def _seq(self, session: Session, event_id: EventId | None) -> int:
        found = [] if event_id is None else session.rows(self._words(_SEQ), (stored_id(event_id),))
        return int(found[0][0]) if found else 0

    def _keys(self, session: Session, blocked: bool, limit: int) -> list[KeyState]:
        rows = session.rows(self._words(_KEYS), (int(blocked), limit))
        return [key_of(tenant, lane, Place(*place), count - 1) for tenant, lane, count, *place in rows]

    def _oldest_open_transaction(self, session: Session) -> float:
        if self._words.dialect == "sqlite":
            return 0.0
        return float(session.rows(_OPEN_TRANSACTIONS, (self._words.names.space & 0xFFFFFFFF,))[0][0])

    def _dead_tuples(self, session: Session) -> int:
        if self._words.dialect == "sqlite":
            return 0
        found = session.rows(_DEAD_TUPLES, (self._words.names.schema, self._words.names.table))
        return int(found[0][0]) if found else 0
