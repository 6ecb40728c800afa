"""Sends failed and parked rows on their way again, a few first if asked; who did it and why is written with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.clock import Clock
from postroad.connections import Database, Row, Session
from postroad.errors import NotRedrivable
from postroad.events import ordering_key
from postroad.outbox.dialects import Phrases
from postroad.outbox.queries import row_of, stored_id
from postroad.outbox.rows import PENDING, SENT, SKIPPED, EventId, OutboxRow
from postroad.outbox.schema.names import CHANNEL
from postroad.queues import fingerprint

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
AUDIT: Final = """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows are meant: those named, those that fit every filter given, or those named that fit."""

    event_ids: tuple[str, ...] = ()
    lane: str | None = None
    tenant_id: str | None = None
    type: str | None = None
    group: str | None = None
    limit: int | None = None

    def fits(self, row: OutboxRow) -> bool:
        """Whether the row fits every filter given."""
        return (
            self.lane in (None, row.lane)
            and self.tenant_id in (None, row.tenant_id)
            and self.type in (None, row.event_type)
            and self.group in (None, group_of(row))
        )


def group_of(row: OutboxRow) -> str:
    """The group of failures that the row belongs to."""
    return fingerprint(row.last_error, row.event_type)


class Redriving:
    """The changes that an operator makes, each in one transaction with its entries in the audit."""

    def __init__(self, database: Database, words: Phrases) -> None:
        self._database = database
        self._words = words

    def selected(self, selection: Selection) -> list[OutboxRow]:
        """The rows that a redrive of the selection would send again, in order."""
        with self._database.transaction() as session:
            return self._with_parked_keys(session, self._select(session, selection))

    def redrive(self, selection: Selection, *, by: str, reason: str) -> list[OutboxRow]:
        """Make the selected rows pending again."""
        with self._database.transaction() as session:
            rows = self._with_parked_keys(session, self._select(session, selection))
            if rows:
                ids, keys = _json(row.event_id for row in rows), _keys(rows)
                session.change(self._words(AUDIT), (by, "redrive", reason, PENDING, ids))
                session.change(self._words(_REDRIVE), (ids,))
                session.change(self._words(_NO_GAP), (ids,))
                session.change(self._words(_OPEN_KEYS), (keys,))
                self._wake(session)
        return rows

    def skip(self, event_id: EventId, *, by: str, reason: str) -> None:
        """Give the row up and open its key; the key's next message names it."""
        with self._database.transaction() as session:
            row = self._select(session, Selection(event_ids=(stored_id(event_id),)))[0]
            ids, tenant = _json([row.event_id]), row.tenant_id or ""
            session.change(self._words(AUDIT), (by, "skip", reason, SKIPPED, ids))
            session.change(self._words(_SKIP), (str(row.event_id),))
            session.change(self._words(_GAP), (tenant, row.lane, row.seq, str(row.event_id)))
            parked_by = session.rows(self._words(_PARKED_BY), (tenant, row.lane))
            if [(str(row.event_id),)] == [tuple(found) for found in parked_by]:
                behind = session.rows(self._words(_OF_PARKED_KEYS), (_keys([row]),))
                session.change(self._words(_UNPARK), (_json(row_of(found).event_id for found in behind),))
                session.change(self._words(_OPEN_KEYS), (_keys([row]),))
            self._wake(session)

    def _select(self, session: Session, selection: Selection) -> list[OutboxRow]:
        found = self._named(session, selection) if selection.event_ids else self._filtered(session, selection)
        fitting = [row for row in map(row_of, found) if selection.fits(row)]
        return fitting[: selection.limit]

    def _named(self, session: Session, selection: Selection) -> list[Row]:
        found = session.rows(self._words(_BY_ID), (_json(selection.event_ids),))
        states = {str(row.event_id): row.state for row in map(row_of, found)}
        for event_id in selection.event_ids:
            state = states.get(event_id, "not recorded here")
            if event_id not in states or state in (PENDING, SENT, SKIPPED):
                raise NotRedrivable(f"event {event_id} is {state}")
        return found

    def _filtered(self, session: Session, selection: Selection) -> list[Row]:
        filters = (selection.lane, selection.tenant_id, selection.type)
        return session.rows(self._words(_BY_FILTER), [value for each in filters for value in (each, each)])

    def _with_parked_keys(self, session: Session, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """The rows with all others of their parked keys: a key comes back as a whole, or its order would be lost."""
        together = {row.seq: row for row in rows}
        while together:
            before = len(together)
            found = session.rows(self._words(_OF_PARKED_KEYS), (_keys(list(together.values())),))
            together |= {row.seq: row for row in map(row_of, found)}
            if len(together) == before:  # a dispatcher that was parking another row of them has ended meanwhile
                break
        return [together[seq] for seq in sorted(together)]

    def _wake(self, session: Session) -> None:
        if self._words.dialect == "postgresql":
            session.rows(_NOTIFY, (CHANNEL, self._words.names.table))


def lane_named(key: object) -> str | None:
    """The lane that `key=` of a redrive means."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, dict) and key:
        return ordering_key(key)
    raise ValueError(f"key: {key!r} is neither a text nor a mapping")


def _json(values: Iterable[object]) -> str:
    return msgspec.json.encode([str(value) for value in values]).decode()


def _keys(rows: Sequence[OutboxRow]) -> str:
    return msgspec.json.encode(sorted({(row.tenant_id or "", row.lane) for row in rows})).decode()


_LOOK_EVERY_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 60.0


def redrive_behind_canaries(
    redriving: Redriving,
    selection: Selection,
    *,
    canaries: int,
    by: str,
    reason: str,
    look: Callable[[EventId], OutboxRow | None],
    clock: Clock,
    sleep: Callable[[float], None],
) -> list[OutboxRow]:
    """The rows that were redriven: all of them, or the canaries alone when one failed as before or none settled."""
    chosen = redriving.selected(selection)
    if not chosen:
        return []
    groups = {str(row.event_id): group_of(row) for row in chosen}
    first = redriving.redrive(_only(chosen[:canaries]), by=by, reason=reason)
    done = {row.event_id for row in first}
    rest = [row for row in chosen if row.event_id not in done]
    if not rest or not _went_through(first, groups, look, clock, sleep):
        return first
    return first + redriving.redrive(_only(rest), by=by, reason=reason)


def _only(rows: Sequence[OutboxRow]) -> Selection:
    return Selection(event_ids=tuple(str(row.event_id) for row in rows))


def _went_through(
    rows: Sequence[OutboxRow],
    groups: dict[str, str],
    look: Callable[[EventId], OutboxRow | None],
    clock: Clock,
    sleep: Callable[[float], None],
) -> bool:
    until = clock.monotonic() + _LONGEST_SECONDS
    waiting = list(rows)
    while waiting and clock.monotonic() < until:
        now = [found for row in waiting if (found := look(row.event_id)) is not None]
        if any(_failed_again(row, groups) for row in now):
            return False
        waiting = [row for row in now if row.state == PENDING and not row.attempts]
        if waiting:
            sleep(_LOOK_EVERY_SECONDS)
    return not waiting


def _failed_again(row: OutboxRow, groups: dict[str, str]) -> bool:
    """A first attempt that failed in the same way is enough; its retries need not be waited for."""
    return row.state != SENT and row.attempts > 0 and group_of(row) == groups.get(str(row.event_id))
