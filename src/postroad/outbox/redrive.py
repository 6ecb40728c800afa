"""What operators do to events: redrive or skip those that failed, and replay those that were sent.

Each change is written to the audit with the name of the operator and the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from postroad.connections import Database, Row, Session
from postroad.errors import InvalidInput, NotRedrivable, TargetUnavailable
from postroad.events import ordering_key
from postroad.outbox.dispatching.decisions import Plan
from postroad.outbox.dispatching.publisher import Outlet, Rejected, Renderer, Sent, TargetDown, Tried, Verdict
from postroad.outbox.dispatching.store import ClaimedRow, Key
from postroad.outbox.queries import Queries, group_of, row_of, stored_id
from postroad.outbox.rows import PENDING, SENT, SKIPPED, EventId, OutboxRow, ReplayReport
from postroad.outbox.schema import CHANNEL, Tables

_BY_ID: Final = "SELECT {columns} FROM {outbox} WHERE event_id IN {among} ORDER BY seq {for_update}"
_BY_FILTER: Final = """
SELECT {columns} FROM {outbox}
 WHERE state NOT IN ('SENT', 'SKIPPED') AND state <> 'PENDING'
   AND (CAST(? AS text) IS NULL OR lane = ?) AND (CAST(? AS text) IS NULL OR tenant = ?)
   AND (CAST(? AS text) IS NULL OR eventtype = ?)
 ORDER BY seq {for_update}
"""
_OF_PARKED_KEYS: Final = """
SELECT {columns} FROM {outbox} AS o
 WHERE state NOT IN ('SENT', 'SKIPPED') AND held IN (0, 1, 2) AND state <> 'PENDING'
   AND (coalesce(tenant, ''), lane) IN {keys}
   AND EXISTS (SELECT 1 FROM {parked} AS p WHERE p.tenant = coalesce(o.tenant, '') AND p.lane = o.lane)
 ORDER BY seq {for_update}
"""
_AUDIT: Final = """
INSERT INTO {audit} (actor, action, event_id, reason, before, after)
SELECT ?, ?, event_id, ?, state, ? FROM {outbox} WHERE event_id IN {among} ORDER BY seq
"""
_REDRIVE: Final = """
UPDATE {outbox} SET state = 'PENDING', attempts = 0, next_attempt = {now}, redrives = redrives + 1, held = 0,
       lease_owner = NULL, lease_until = NULL, updatedat = {now}
 WHERE event_id IN {among}
"""
_UNPARK: Final = """
UPDATE {outbox} SET state = 'PENDING', held = 0, next_attempt = {now}, updatedat = {now}
 WHERE event_id IN {among} AND state = 'PARKED'
"""
_SKIP: Final = "UPDATE {outbox} SET state = 'SKIPPED', updatedat = {now} WHERE event_id = ?"
_OPEN_KEYS: Final = "DELETE FROM {parked} WHERE (tenant, lane) IN {keys}"
_PARKED_BY: Final = "SELECT event_id FROM {parked} WHERE tenant = ? AND lane = ?"
_NO_GAP: Final = "DELETE FROM {gaps} WHERE event_id IN {among}"
_GAP: Final = "INSERT INTO {gaps} (tenant, lane, seq, event_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_NOTIFY: Final = "SELECT pg_notify(?, ?)"
_LOOK_SECONDS: Final = 0.05
_LONGEST_LOOK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows to redrive: those named, those that fit every filter given, or those named that fit."""

    event_ids: tuple[str, ...] = ()
    lane: str | None = None
    tenant_id: str | None = None
    type: str | None = None
    group: str | None = None
    limit: int | None = None

    def fits(self, row: OutboxRow) -> bool:
        return (
            self.lane in (None, row.lane)
            and self.tenant_id in (None, row.tenant_id)
            and self.type in (None, row.event_type)
            and self.group in (None, group_of(row))
        )


class Repairs:
    """Redrives and skips rows of one outbox, each time in one transaction with the entries in the audit."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self._database = database
        self._tables = tables

    def selected(self, selection: Selection) -> list[OutboxRow]:
        """Return the rows that a redrive of the selection would send again, in order."""
        with self._database.transaction() as session:
            return self._with_parked_keys(session, self._select(session, selection))

    def redrive(self, selection: Selection, *, by: str, reason: str) -> list[OutboxRow]:
        """Make the selected rows pending again, and return them."""
        with self._database.transaction() as session:
            rows = self._with_parked_keys(session, self._select(session, selection))
            if rows:
                ids = _json(row.event_id for row in rows)
                session.change(self._tables(_AUDIT), (by, "redrive", reason, PENDING, ids))
                session.change(self._tables(_REDRIVE), (ids,))
                session.change(self._tables(_NO_GAP), (ids,))
                session.change(self._tables(_OPEN_KEYS), (_keys(rows),))
                self._wake(session)
        return rows

    def skip(self, event_id: EventId, *, by: str, reason: str) -> None:
        """Give the row up and unblock its key; the key's next message names the event."""
        with self._database.transaction() as session:
            row = self._select(session, Selection(event_ids=(stored_id(event_id),)))[0]
            ids, key, tenant = _json([row.event_id]), _keys([row]), row.tenant_id or ""
            session.change(self._tables(_AUDIT), (by, "skip", reason, SKIPPED, ids))
            session.change(self._tables(_SKIP), (str(row.event_id),))
            session.change(self._tables(_GAP), (tenant, row.lane, row.seq, str(row.event_id)))
            parked_by = session.rows(self._tables(_PARKED_BY), (tenant, row.lane))
            if [(str(row.event_id),)] == [tuple(found) for found in parked_by]:
                behind = session.rows(self._tables(_OF_PARKED_KEYS), (key,))
                session.change(self._tables(_UNPARK), (_json(row_of(found).event_id for found in behind),))
                session.change(self._tables(_OPEN_KEYS), (key,))
            self._wake(session)

    def redrive_canaries_first(self, selection: Selection, *, canaries: int, by: str, reason: str) -> list[OutboxRow]:
        """Redrive a few of the rows, and the others once those were sent; return the rows that were redriven.

        Only the first few are redriven if one of them fails as before, or if none is tried within a minute.
        """
        chosen = self.selected(selection)
        if not chosen:
            return []
        groups = {str(row.event_id): group_of(row) for row in chosen}
        first = self.redrive(_only(chosen[:canaries]), by=by, reason=reason)
        done = {row.event_id for row in first}
        rest = [row for row in chosen if row.event_id not in done]
        if not rest or not self._were_sent(first, groups):
            return first
        return first + self.redrive(_only(rest), by=by, reason=reason)

    def _were_sent(self, rows: Sequence[OutboxRow], groups: dict[str, str]) -> bool:
        queries, until = Queries(self._database, self._tables), time.monotonic() + _LONGEST_LOOK_SECONDS
        waiting = list(rows)
        while waiting and time.monotonic() < until:
            now = [found for row in waiting if (found := queries.get(row.event_id)) is not None]
            # A first attempt that failed in the same way is enough; there is no need to wait for its retries.
            tried = (row for row in now if row.state != SENT and row.attempts > 0)
            if any(group_of(row) == groups.get(str(row.event_id)) for row in tried):
                return False
            waiting = [row for row in now if row.state == PENDING and not row.attempts]
            if waiting:
                time.sleep(_LOOK_SECONDS)
        return not waiting

    def _select(self, session: Session, selection: Selection) -> list[OutboxRow]:
        if selection.event_ids:
            found = self._named(session, selection.event_ids)
        else:
            filters = (selection.lane, selection.tenant_id, selection.type)
            found = session.rows(self._tables(_BY_FILTER), [value for each in filters for value in (each, each)])
        fitting = [row for row in map(row_of, found) if selection.fits(row)]
        return fitting[: selection.limit]

    def _named(self, session: Session, event_ids: Sequence[str]) -> list[Row]:
        found = session.rows(self._tables(_BY_ID), (_json(event_ids),))
        states = {str(row.event_id): row.state for row in map(row_of, found)}
        for event_id in event_ids:
            state = states.get(event_id, "not recorded here")
            if event_id not in states or state in (PENDING, SENT, SKIPPED):
                raise NotRedrivable(f"event {event_id} is {state}")
        return found

    def _with_parked_keys(self, session: Session, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Add all other rows of the parked keys: a key is redriven as a whole, or its order would be lost."""
        together = {row.seq: row for row in rows}
        while together:
            before = len(together)
            found = session.rows(self._tables(_OF_PARKED_KEYS), (_keys(list(together.values())),))
            together |= {row.seq: row for row in map(row_of, found)}
            if len(together) == before:  # no dispatcher has parked another row of them meanwhile
                break
        return [together[seq] for seq in sorted(together)]

    def _wake(self, session: Session) -> None:
        if self._tables.dialect == "postgresql":
            session.rows(_NOTIFY, (CHANNEL, self._tables.table))


def lane_named(key: object) -> str | None:
    """Return the stored lane that the argument `key` of a redrive or replay means."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, Mapping) and key:
        return ordering_key(key)
    raise ValueError(f"key: {key!r} is neither a text nor a mapping")


def _json(values: Iterable[object]) -> str:
    return msgspec.json.encode([str(value) for value in values]).decode()


def _keys(rows: Sequence[OutboxRow]) -> str:
    return msgspec.json.encode(sorted({(row.tenant_id or "", row.lane) for row in rows})).decode()


def _only(rows: Sequence[OutboxRow]) -> Selection:
    return Selection(event_ids=tuple(str(row.event_id) for row in rows))


_SENT: Final = """
SELECT event_id FROM {outbox}
 WHERE state IN ('SENT', 'SKIPPED') AND state = 'SENT' AND updatedat >= {moment} AND updatedat < {moment}
   AND (CAST(? AS text) IS NULL OR eventtype = ?) AND (CAST(? AS text) IS NULL OR lane = ?)
   AND eventtype <> 'postroad.task'
 ORDER BY seq
"""
_READ_SENT: Final = """
SELECT CAST(id AS text), coalesce(tenant, ''), lane, seq, CAST(payload AS text), redrives, event_id FROM {outbox}
 WHERE event_id IN {among} AND state = 'SENT' ORDER BY seq
"""
_PAGE: Final = 100
_CALL: Final = 10
_EVER: Final = (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
_AGAIN: Final = "Repair the topic and replay again; `postroad outbox audit` lists what was replayed before."
_FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSelection:
    """Which sent events to replay: those that fit every filter given."""

    since: datetime | None = None
    until: datetime | None = None
    type: str | None = None
    lane: str | None = None

    def __post_init__(self) -> None:
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInput(
                    f"{name}: {moment} has no time zone", field=name, remedy="Give a time with its zone, such as UTC."
                )

    def event_ids(self, database: Database, tables: Tables) -> list[str]:
        """Return the ids of the events that fit, in the order in which they were recorded."""
        times = (
            f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
            for moment in (self.since or _EVER[0], self.until or _EVER[1])
        )
        with database.reading() as session:
            found = session.rows(tables(_SENT), (*times, self.type, self.type, self.lane, self.lane))
        return [event_id for (event_id,) in found]


class Replay:
    """One replay. A key stops at an event that fails; the other keys go on."""

    def __init__(
        self, database: Database, tables: Tables, renderer: Renderer, outlet: Outlet, *, by: str, reason: str
    ) -> None:
        self._database = database
        self._tables = tables
        self._outlet = outlet
        self._plan = Plan(renderer.message, publish_batch=_CALL, atomic=outlet.atomic)
        self._by, self._reason = by, reason
        self._stopped: set[Key] = set()
        self._error: str | None = None
        self._replayed = self._failed = self._held = 0

    def run(self, event_ids: Sequence[str], progress: Callable[[int], None] | None = None) -> ReplayReport:
        """Publish the events, page by page; raise TargetUnavailable when the topic refuses everything."""
        for start in range(0, len(event_ids), _PAGE):
            rows = self._read(event_ids[start : start + _PAGE])
            going = {event_id: row for event_id, row in rows.items() if row.key not in self._stopped}
            self._held += len(rows) - len(going)
            self._publish(going)
            if progress is not None:
                progress(self._replayed)
        return ReplayReport(len(event_ids), self._replayed, self._failed, self._held, self._error)

    def _read(self, event_ids: Sequence[str]) -> dict[str, ClaimedRow]:
        with self._database.reading() as session:
            found = session.rows(self._tables(_READ_SENT), (_json(event_ids),))
        return {
            event_id: ClaimedRow(row_id, Key(tenant, lane), seq, payload, 0, redrives, 0)
            for row_id, tenant, lane, seq, payload, redrives, event_id in found
        }

    def _publish(self, rows: dict[str, ClaimedRow]) -> None:
        event_ids = {row.id: event_id for event_id, row in rows.items()}
        sent: list[str] = []
        self._plan.add(list(rows.values()), until=_FOREVER)
        try:
            for row, verdict in self._verdicts():
                if isinstance(verdict, Sent):
                    sent.append(event_ids[row.id])
                else:
                    self._stop(row, verdict)
        finally:
            self._replayed += len(sent)
            if sent:
                with self._database.transaction() as session:
                    session.change(self._tables(_AUDIT), (self._by, "replay", self._reason, SENT, _json(sent)))

    def _verdicts(self) -> Iterator[tuple[ClaimedRow, Verdict]]:
        """Publish the planned rows, call by call, and yield the verdict on each."""
        while not self._plan.empty:
            call, unbuildable = self._plan.next_call()
            yield from unbuildable.verdicts
            self._held += len(unbuildable.untouched)
            if call.entries:
                outcome = self._plan.finish(call, self._outlet.publish(call.messages))
                yield from sorted(outcome.verdicts, key=lambda each: isinstance(each[1], TargetDown))
                self._held += len(outcome.untouched)

    def _stop(self, row: ClaimedRow, verdict: Verdict) -> None:
        if isinstance(verdict, TargetDown):
            error = TargetUnavailable(verdict.error, retry_after=verdict.retry_after)
            error.remedy = _AGAIN
            raise error
        self._stopped.add(row.key)
        if isinstance(verdict, Tried | Rejected):
            self._failed += 1
            self._error = verdict.error
        else:
            self._held += 1
