"""Entries of the journal as rows of the engine's file."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import apsw
import msgspec

from postroad.engine import Engine, Transaction, every, one, run_many
from postroad.errors import PostroadError, StorageDamaged
from postroad.journal.event import JournalEvent
from postroad.journal.keys import event_id_of, place_of
from postroad.journal.records import Entry, Question, event_of
from postroad.journal.sqlite.states import Kept, News, read_states
from postroad.journal.sqlite.tables import (
    BACKWARD,
    COLUMNS,
    FORWARD,
    SCHEMA,
    Scopes,
    name_of_kind,
    names_asked,
    names_of,
)
from postroad.journal.states import TASK
from postroad.journal.store import Followed

_ADD: Final = """
INSERT INTO journal_event (tenant, entity, app, kind, place, received_ms, ttl, crc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_LAST: Final = "SELECT max(id) FROM journal_event"
_SINCE: Final = "SELECT tenant, place FROM journal_event WHERE id > ?"
_END: Final = "SELECT id, received_ms FROM journal_event ORDER BY id DESC LIMIT 1"
_RECEIVED: Final = "SELECT received_ms FROM journal_event WHERE id = ?"
_RECEIVED_BEFORE: Final = "SELECT max(id) FROM journal_event WHERE received_ms < ?"
_BETWEEN: Final = """
SELECT place, body, received_ms, ttl, crc FROM journal_event NOT INDEXED
WHERE id > ? AND id <= ? AND kind IN (SELECT value FROM json_each(?)) ORDER BY id
"""
_NEXT: Final = """
SELECT id, received_ms FROM (SELECT id, received_ms FROM journal_event WHERE id > ? ORDER BY id LIMIT 1000)
ORDER BY id DESC LIMIT 1
"""
_MARGIN_MS: Final = 60_000
_HAS: Final = "SELECT 1 FROM journal_event WHERE tenant = ? AND place = ?"
_REMOVE: Final = "DELETE FROM journal_event INDEXED BY journal_pk WHERE (tenant, place) IN (VALUES (?, ?))"
_FORGET_TASK: Final = """
DELETE FROM journal_task WHERE entity IN (VALUES (?)) AND NOT EXISTS (
    SELECT 1 FROM journal_event INDEXED BY journal_gsi1 WHERE journal_event.entity = journal_task.entity
)
"""

Row = tuple[int, int, int, int, bytes, int, int | None, int, bytes]
"""Tenant, entity, app, type, place, time of receipt, ttl, checksum and body."""


class SQLiteRecords:
    """Entries in the engine's file; an append inside `engine.transaction()` commits with the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scopes = Scopes()
        self.init()

    def init(self) -> None:
        """Make or migrate the tables."""
        self._engine.prepare(SCHEMA)

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        """Keep each entry: True when it is new, False when it was there."""
        return self._engine.write(lambda tx: self._add(tx, entries, received_at, ttl))

    def has(self, event: JournalEvent) -> bool:
        """Whether an event of this tenant, time and id is there."""

        def look(connection: apsw.Connection) -> bool:
            tenant = self._scopes.find(connection, [event.tenant_id])
            place = place_of(event.timestamp, event.event_id)
            return tenant is not None and one(connection, _HAS, (*tenant, place)) is not None

        return self._engine.read(look)

    @property
    def expires_itself(self) -> bool:
        """A file forgets nothing by itself."""
        return False

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events, and the kept states of tasks that have none any more."""
        # Lost to a power cut, it is done again; on a full disk it makes room.
        self._engine.write(lambda tx: self._remove(tx.connection, events), durable=False)

    def read(self, question: Question, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        """Up to `limit` events between two places, both of them outside."""
        statement = (BACKWARD if question.descending else FORWARD)[question.index]
        names = names_asked(question, COLUMNS[question.index])

        def look(connection: apsw.Connection) -> list[Any]:
            scopes = self._scopes.find(connection, names)
            return [] if scopes is None else every(connection, statement, (*scopes, low, high, limit))

        return [_event(question.tenant, *row) for row in self._engine.read(look)]

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        """Return the events of these types in the next rows, in the order of their commits."""

        def look(connection: apsw.Connection) -> tuple[list[Any], str, bool]:
            end = one(connection, _END) or (0, 0)
            start = end[0] if position is None else _start(connection, position)
            reached = one(connection, _NEXT, (start,))
            if reached is None:
                return [], _position(*end), False
            kinds = [self._scopes.find(connection, [name_of_kind(tenant, each)]) for each in event_types]
            known = msgspec.json.encode([kind[0] for kind in kinds if kind is not None]).decode()
            return every(connection, _BETWEEN, (start, reached[0], known)), _position(*reached), reached[0] < end[0]

        rows, reached, has_more = self._engine.read(look)
        return Followed([_event(tenant, *row) for row in rows], reached, has_more)

    def states(self, tenant: str, *, app: str | None, since: int | None) -> Iterable[tuple[str, str]]:
        """Request id and state of each task with an event in the app and at or after `since`."""
        return read_states(self._engine, self._scopes, tenant, app=app, since=since)

    def _remove(self, connection: apsw.Connection, events: Sequence[JournalEvent]) -> None:
        tenants: dict[str, list[int] | None] = {}
        for event in events:
            if event.tenant_id not in tenants:
                tenants[event.tenant_id] = self._scopes.find(connection, [event.tenant_id])
        rows = [(*tenant, _place(event)) for event in events if (tenant := tenants[event.tenant_id]) is not None]
        run_many(connection, _REMOVE, rows)
        names = {names_of(event)[1] for event in events if event.entity_type == TASK}
        tasks = [found for name in sorted(names) if (found := self._scopes.find(connection, [name])) is not None]
        run_many(connection, _FORGET_TASK, [tuple(task) for task in tasks])

    def _add(
        self, tx: Transaction, entries: Sequence[Entry], received_at: int, ttl: int | None
    ) -> list[bool | PostroadError]:
        names = [names_of(entry.event) for entry in entries]
        number = self._scopes.make(tx, chain.from_iterable(names))
        rows: list[Row] = [
            (
                number(tenant),
                number(entity),
                number(app),
                number(kind),
                _place(entry.event),
                received_at,
                ttl,
                zlib.crc32(entry.body),
                entry.body,
            )
            for entry, (tenant, entity, app, kind) in zip(entries, names, strict=True)
        ]
        kept = Kept(tx, {row[1] for entry, row in zip(entries, rows, strict=True) if _is_of_task(entry)})
        new = _inserted(tx.connection, rows)
        kept.move(_new_of_tasks(entries, rows, new))
        return list(new)


def _new_of_tasks(entries: Sequence[Entry], rows: Sequence[Row], new: Sequence[bool]) -> dict[tuple[int, int], News]:
    """The new events of each task, which is known by the numbers of tenant and entity."""
    by_task: dict[tuple[int, int], News] = {}
    for entry, row, is_new in zip(entries, rows, new, strict=True):
        if is_new and _is_of_task(entry):
            by_task.setdefault((row[0], row[1]), []).append((row[4], entry.event))
    return by_task


def _is_of_task(entry: Entry) -> bool:
    return entry.event.entity_type == TASK


def _inserted(connection: apsw.Connection, rows: Sequence[Row]) -> list[bool]:
    """Insert the rows; which of them were not there before, of two equal ones the first."""
    last = one(connection, _LAST)[0] or 0
    before = connection.total_changes()
    run_many(connection, _ADD, rows)
    if connection.total_changes() - before == len(rows):
        return [True] * len(rows)
    new = set(every(connection, _SINCE, (last,)))
    return [_taken(new, (row[0], row[4])) for row in rows]


def _position(row: int, received_ms: int) -> str:
    return f"{row}.{received_ms}"


def _start(connection: apsw.Connection, position: str) -> int:
    """The row behind which a position goes on. One that was pruned may have left its number to a younger row."""
    row, received_ms = map(int, position.split("."))
    found = one(connection, _RECEIVED, (row,))
    if row == 0 or (found is not None and found[0] == received_ms):
        return row
    return one(connection, _RECEIVED_BEFORE, (received_ms - _MARGIN_MS,))[0] or 0


def _place(event: JournalEvent) -> bytes:
    return place_of(event.timestamp, event.event_id)


def _taken(new: set[Any], key: tuple[int, bytes]) -> bool:
    """Whether the row is a new one; of two equal ones in a batch the first is."""
    if key not in new:
        return False
    new.remove(key)
    return True


def _event(tenant: str, place: bytes, body: bytes, received_ms: int, ttl: int | None, crc: int) -> JournalEvent:
    if zlib.crc32(body) != crc:
        raise StorageDamaged(
            f"event {event_id_of(place)}: its row is not what was written", remedy="Restore the file from a backup."
        )
    return event_of(tenant, place, body, received_ms, ttl)
