"""What operators read from an outbox: its rows, why one is not published yet, and what a consumer has not handled."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from postroad.connections import Database, Row, Session
from postroad.errors import InvalidInput
from postroad.outbox.rows import (
    PARKED,
    PENDING,
    AuditEntry,
    EventId,
    FailureGroup,
    KeyState,
    OutboxRow,
    OutboxStatus,
    Reconciliation,
)
from postroad.outbox.schema import Tables, moment
from postroad.queues import fingerprint

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


class Place(NamedTuple):
    """Where a row stands now, by the database's own clock."""

    event_id: str
    state: str
    last_error: str | None
    due: bool
    next_attempt: Any
    leased_by: str | None
    """None unless a dispatcher holds a lease on it."""
    lease_until: Any


def event_id_of(stored: object) -> EventId:
    """Return the id as a UUID if the table holds it in the canonical form of one, else as the text that it is."""
    if isinstance(stored, UUID):
        return stored
    text = str(stored)
    return UUID(text) if _UUID.fullmatch(text) and text == str(UUID(text)) else text


def stored_id(given: EventId) -> str:
    """Return the id as the table holds it: a UUID in its canonical form, any other text unchanged."""
    text = str(given)
    if "\0" in text:
        raise InvalidInput("event_id: holds the character NUL, which no database stores", field="event_id")
    return str(UUID(text)) if _UUID.fullmatch(text) else text


def row_of(row: Row) -> OutboxRow:
    """Return the record of a row that was selected by {columns}."""
    row_id, event_id, *named, attempts, error, due, created, updated, seq, redrives = row
    times = map(moment, (due, created, updated))
    # Only SQL written by others makes the attempts negative; dispatchers count from zero then.
    rest: list[Any] = [*named, max(attempts, 0), error, *times, seq, redrives]
    return OutboxRow(event_id_of(row_id), event_id_of(event_id), *rest)


def group_of(row: OutboxRow) -> str:
    """Return the group of failures that the row belongs to."""
    return fingerprint(row.last_error, row.event_type)


def standing(row: Place) -> str | None:
    """Say why the row by itself is not published; None if it only waits for others or could be published."""
    match row.state:
        case "SENT" | "SKIPPED" | "PARKED":
            return row.state.lower()
        case "FAILED":
            return f"failed: {row.last_error or 'for no recorded reason'}"
        case "PENDING" if row.leased_by is not None:
            return f"leased by {row.leased_by} until {moment(row.lease_until).isoformat()}"
        case "PENDING":
            return None if row.due else f"waiting until {moment(row.next_attempt).isoformat()}"
    return f"failed: unknown state {row.state!r}"


def why(row: Place, head: Place, target_error: str | None) -> str:
    """Say in one sentence what the row waits for; `head` is the first row of its key that is not done."""
    if row.state == PARKED:
        return f"blocked by {head.event_id} (parked)"
    if row.state != PENDING or row.leased_by is not None:
        return standing(row) or "ready"
    if target_error is not None and head.state == PENDING:
        return f"target unavailable: {target_error}"
    return f"blocked by {head.event_id}" if head.event_id != row.event_id else standing(row) or "ready"


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
# Rows that are done can be very many, so they are counted up to a limit and estimated above it: by the size of their
# index that PostgreSQL keeps, or by the row numbers of SQLite, of which prune deletes the lowest.
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
_PAGE: Final = 1_000
_SENT: Final = """
SELECT updatedat, id, event_id, eventtype FROM {outbox}
 WHERE state IN ('SENT', 'SKIPPED') AND state = 'SENT' AND updatedat <= {ago} AND eventtype <> 'postroad.task'
   AND (updatedat > {moment} OR (updatedat = {moment} AND id > {row_id}))
 ORDER BY updatedat, id LIMIT ?
"""
_KNOWN: Final = "SELECT event_id FROM {outbox} WHERE event_id IN {among}"
_OLDEST: Final = "SELECT min(createdat) FROM {outbox}"
_BEFORE_ALL: Final = ("0001-01-02T00:00:00.000Z", "00000000-0000-0000-0000-000000000000")


class HandledEvents(Protocol):
    """An inbox, as far as `reconcile` reads it."""

    def processed(self, consumer: str, event_ids: Iterable[UUID]) -> set[UUID]:
        """Return those of the events that the consumer has handled."""
        ...

    def event_ids(self, consumer: str, *, after: UUID | None = None, limit: int = 1_000) -> list[UUID]:
        """Return events that the consumer has handled, in the order of their ids."""
        ...


class Queries:
    """Questions about one outbox, each answered by one read transaction unless its method says otherwise."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self._database = database
        self._tables = tables

    def get(self, event_id: EventId) -> OutboxRow | None:
        rows = self._rows(_GET, stored_id(event_id))
        return row_of(rows[0]) if rows else None

    def failed(self, *, limit: int = _ALL, after: EventId | int | None = None) -> list[OutboxRow]:
        """Return rows that failed or are in an unknown state, oldest first, behind the event `after`."""
        seq = after
        if not isinstance(seq, int):
            found = [] if after is None else self._rows(_SEQ, stored_id(str(after)))
            seq = int(found[0][0]) if found else 0
        return [row_of(row) for row in self._rows(_FAILED, seq, limit)]

    def failed_groups(self) -> list[FailureGroup]:
        groups: dict[str, list[OutboxRow]] = {}
        for row in self.failed():
            groups.setdefault(group_of(row), []).append(row)
        counted = [
            FailureGroup(group, rows[0].event_type, len(rows), rows[0].last_error, rows[0].event_id)
            for group, rows in groups.items()
        ]
        return sorted(counted, key=lambda group: -group.count)

    def audit(self, limit: int) -> list[AuditEntry]:
        return [
            AuditEntry(seq, moment(at), actor, action, event_id_of(event_id), reason, before, after)
            for seq, at, actor, action, event_id, reason, before, after in self._rows(_AUDIT, limit)
        ]

    def keys(self, *, blocked: bool, limit: int) -> list[KeyState]:
        """Return the keys whose first row cannot be published now, or all that are not done, oldest first."""
        with self._database.reading() as session:
            return self._keys(session, blocked, limit)

    def why(self, event_id: EventId) -> str:
        with self._database.reading() as session:
            found = session.rows(self._tables(_ONE), (stored_id(event_id),))
            if not found:
                return f"unknown: no event {event_id} is recorded here"
            tenant, lane, *place = found[0]
            row = Place(*place)
            heads = session.rows(self._tables(_HEAD), (tenant, lane))
            target_error = session.rows(self._tables(_META))[0][0]
        return why(row, Place(*heads[0]) if heads else row, target_error)

    def status(self) -> OutboxStatus:
        with self._database.reading() as session:
            pending, age = session.rows(self._tables(_PENDING))[0]
            sent, skipped = self._done(session)
            transaction_seconds, dead_tuples = self._postgres_figures(session)
            return OutboxStatus(
                pending=pending,
                sent=sent,
                failed=session.rows(self._tables(_DEAD))[0][0],
                parked=session.rows(self._tables(_PARKED))[0][0],
                skipped=skipped,
                blocked_keys=len(self._keys(session, True, _ALL)),
                oldest_pending_seconds=max(float(age), 0.0),
                oldest_open_transaction_seconds=transaction_seconds,
                target_error=session.rows(self._tables(_META))[0][0],
                dead_tuples=dead_tuples,
            )

    def reconcile(
        self, inbox: HandledEvents, *, consumer: str, older_than: float, types: Collection[str] | None
    ) -> Reconciliation:
        """Compare the sent events with those that the consumer has handled, a page at a time."""
        ok, missing = 0, []
        for sent in self._sent(older_than, types):
            handled = inbox.processed(consumer, sent)
            ok += len(handled)
            missing += [event_id for event_id in sent if event_id not in handled]
        return Reconciliation(ok, missing, list(self._unknown(inbox, consumer)))

    def _rows(self, statement: str, *values: object) -> Sequence[Row]:
        with self._database.reading() as session:
            return session.rows(self._tables(statement), values)

    def _keys(self, session: Session, blocked: bool, limit: int) -> list[KeyState]:
        keys = []
        for tenant, lane, count, *place in session.rows(self._tables(_KEYS), (int(blocked), limit)):
            head = Place(*place)
            reason = standing(head) or "ready"
            keys.append(KeyState(tenant or None, lane, event_id_of(head.event_id), head.state, reason, count - 1))
        return keys

    def _done(self, session: Session) -> tuple[int, int]:
        """Count the sent and the skipped rows; estimate where there are more than 100,000."""
        sent, skipped = session.rows(self._tables(_DONE), (_MOST_COUNTED,))[0]
        if sent + skipped < _MOST_COUNTED:
            return sent, skipped
        in_all = max(int(session.rows(self._tables(_DONE_IN_ALL[self._tables.dialect]))[0][0]), _MOST_COUNTED)
        return sent * in_all // _MOST_COUNTED, skipped * in_all // _MOST_COUNTED

    def _postgres_figures(self, session: Session) -> tuple[float, int]:
        """Return the age of the oldest transaction that has added an event, and the number of dead tuples."""
        if self._tables.dialect == "sqlite":
            return 0.0, 0
        seconds = session.rows(_OPEN_TRANSACTIONS, (self._tables.space & 0xFFFFFFFF,))[0][0]
        dead = session.rows(_DEAD_TUPLES, (self._tables.schema, self._tables.table))
        return float(seconds), int(dead[0][0]) if dead else 0

    def _sent(self, older_than: float, types: Collection[str] | None) -> Iterator[list[UUID]]:
        after: tuple[object, object] = _BEFORE_ALL
        prefixes = tuple(each[:-1] for each in types or () if each.endswith(".*"))
        while page := self._rows(_SENT, f"{older_than:.3f}", after[0], after[0], str(after[1]), _PAGE):
            after = page[-1][0], page[-1][1]
            chosen = (row for row in page if types is None or row[3] in types or row[3].startswith(prefixes))
            ids = (event_id_of(row[2]) for row in chosen)
            yield [event_id for event_id in ids if isinstance(event_id, UUID)]

    def _unknown(self, inbox: HandledEvents, consumer: str) -> Iterator[UUID]:
        oldest = self._rows(_OLDEST)[0][0]
        after = None
        while page := inbox.event_ids(consumer, after=after, limit=_PAGE):
            after = page[-1]
            rows = self._rows(_KNOWN, msgspec.json.encode([str(each) for each in page]).decode())
            known = {str(event_id) for (event_id,) in rows}
            # What is older than the oldest row left was pruned; only a UUIDv7 has a time.
            since = float("inf") if oldest is None else moment(oldest).timestamp() * 1_000
            pruned = {each for each in page if each.version == 7 and each.int >> 80 < since}
            yield from (each for each in page if str(each) not in known and each not in pruned)
