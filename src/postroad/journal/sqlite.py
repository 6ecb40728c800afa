"""The journal on the embedded engine: its tables, its entries as rows, and the state of each task beside its events."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import apsw
import msgspec

from postroad.engine import Engine, Schema, Transaction, every, one, run_many
from postroad.errors import PostroadError, StorageDamaged
from postroad.journal.event import JournalEvent
from postroad.journal.port import (
    FIRST_PLACE,
    LAST_PLACE,
    NEEDS,
    Entity,
    Entry,
    Followed,
    Query,
    event_id_of,
    place_before,
    place_of,
    time_of,
)
from postroad.journal.states import TASK, TERMINAL, Progress

# Tenants, apps, types and entities are numbered in the order of their first event. New events mostly belong to young
# entities, so every index grows near its end and stays as fast as it was when it was small.
SCHEMA: Final = Schema(
    "journal",
    (
        """
        CREATE TABLE journal_scope (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
        CREATE TABLE journal_event (
            id INTEGER PRIMARY KEY,
            tenant INTEGER NOT NULL,
            entity INTEGER NOT NULL,
            app INTEGER NOT NULL,
            kind INTEGER NOT NULL,
            place BLOB NOT NULL,
            received_ms INTEGER NOT NULL,
            ttl INTEGER,
            crc INTEGER NOT NULL,
            body BLOB NOT NULL
        ) STRICT;
        CREATE TABLE journal_task (
            entity INTEGER PRIMARY KEY,
            tenant INTEGER NOT NULL,
            pendings INTEGER NOT NULL,
            run INTEGER NOT NULL,
            state TEXT NOT NULL,
            begun INTEGER NOT NULL,
            decided INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX journal_task_tenant ON journal_task (tenant);
        CREATE UNIQUE INDEX journal_pk ON journal_event (tenant, place);
        CREATE INDEX journal_gsi1 ON journal_event (entity, place);
        CREATE INDEX journal_gsi2 ON journal_event (app, place);
        CREATE INDEX journal_gsi3 ON journal_event (entity, app, place);
        CREATE INDEX journal_gsi4 ON journal_event (kind, place);
        CREATE INDEX journal_gsi5 ON journal_event (entity, kind, place);
        CREATE INDEX journal_gsi6 ON journal_event (app, kind, place);
        CREATE INDEX journal_gsi7 ON journal_event (entity, kind, app, place);
        """,
        "CREATE INDEX journal_task_running ON journal_task (tenant) WHERE state = 'processing'",
        # Each index is one more page to write for each event, and the events of an entity are mostly of one app.
        "DROP INDEX journal_gsi3; DROP INDEX journal_gsi7",
        "DROP INDEX journal_gsi2; DROP INDEX journal_gsi4",
    ),
)
_ANSWERED_BY: Final = {"GSI2": "GSI6", "GSI3": "GSI1", "GSI4": "GSI6", "GSI7": "GSI5"}
"""The indexes without an index of their own. GSI1 and GSI5 find the events of all apps; a page of GSI2 is merged from a
search of GSI6 for each event type of the app, and one of GSI4 from a search for each app of the tenant."""
COLUMNS: Final = {
    index: tuple("kind" if name == "event_type" else name for name in sorted(needs or {"tenant"}))
    for index, needs in NEEDS.items()
}
"""What each index is asked for, in the order of its parameters."""
_SEARCH: Final = "FROM journal_event INDEXED BY journal_{} WHERE {} AND place > ? AND place < ?"
SEARCHES: Final = {
    index: "SELECT place, body, received_ms, ttl, crc "
    + _SEARCH.format(by.lower(), " AND ".join(f"{name} = ?" for name in COLUMNS[by if by == "GSI6" else index]))
    for index in NEEDS
    for by in [_ANSWERED_BY.get(index, index)]
}
"""A search in the order of places, as `in_order` merges them."""
_MOST_MERGED: Final = 100
_KINDS: Final = """
WITH RECURSIVE found (kind) AS (
    SELECT min(kind) FROM journal_event INDEXED BY journal_gsi6 WHERE app = ?1
    UNION ALL
    SELECT (SELECT min(kind) FROM journal_event INDEXED BY journal_gsi6 WHERE app = ?1 AND kind > found.kind)
    FROM found WHERE kind IS NOT NULL
) SELECT kind FROM found WHERE kind IS NOT NULL
"""
# An entity of the type APP has a name like that of an app.
_APPS: Final = """
SELECT id FROM journal_scope AS scope WHERE name > ? AND name < ?
AND EXISTS (SELECT 1 FROM journal_event INDEXED BY journal_gsi6 WHERE app = scope.id)
"""
_FIND: Final = "SELECT id FROM journal_scope WHERE name = ?"
_MAKE: Final = "INSERT INTO journal_scope (name) VALUES (?) ON CONFLICT DO NOTHING RETURNING id, name"
_ADD: Final = """
INSERT INTO journal_event (tenant, entity, app, kind, place, received_ms, ttl, crc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
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
_HAS: Final = "SELECT 1 FROM journal_event WHERE tenant = ? AND place = ?"
_REMOVE: Final = "DELETE FROM journal_event INDEXED BY journal_pk WHERE (tenant, place) IN (VALUES (?, ?))"
_FORGET_TASK: Final = """
DELETE FROM journal_task WHERE entity IN (VALUES (?)) AND NOT EXISTS (
    SELECT 1 FROM journal_event INDEXED BY journal_gsi1 WHERE journal_event.entity = journal_task.entity
)
"""
_PROGRESS: Final = """
SELECT task.entity, task.pendings, task.run, task.state, task.begun, task.decided,
    (SELECT max(place) FROM journal_event INDEXED BY journal_gsi1 WHERE journal_event.entity = task.entity)
FROM journal_task AS task WHERE task.entity IN (VALUES (?))
"""
_SET_PROGRESS: Final = """
INSERT INTO journal_task (entity, tenant, pendings, run, state, begun, decided) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (entity) DO UPDATE SET pendings = excluded.pendings, run = excluded.run, state = excluded.state,
    begun = excluded.begun, decided = excluded.decided
"""
_HISTORY: Final = "SELECT body FROM journal_event INDEXED BY journal_gsi1 WHERE entity = ? ORDER BY place"
_TASKS: Final = """
SELECT task.entity, scope.name, task.state FROM journal_task AS task INDEXED BY journal_task_tenant
JOIN journal_scope AS scope ON scope.id = task.entity
WHERE task.tenant = ? AND task.entity > ? AND task.state = coalesce(?, task.state) ORDER BY task.entity LIMIT 1000
"""
_RUNNING: Final = _TASKS.replace("_tenant", "_running").replace(
    "coalesce(?, task.state)", "? AND task.state = 'processing'"
)
_TASKS_OF_APP: Final = _TASKS.replace(
    "ORDER BY",
    """AND EXISTS (
    SELECT 1 FROM journal_event AS event INDEXED BY journal_gsi1 WHERE event.entity = task.entity AND event.app = ?
) ORDER BY""",
)
_RECENT: Final = "SELECT place, entity " + _SEARCH.format("pk", "tenant = ?")
_RECENT_OF_APP: Final = "SELECT place, entity " + _SEARCH.format("gsi6", "app = ? AND kind = ?")
_RECENT_AT_ONCE: Final = 1_000
_STATES: Final = """
SELECT scope.name, task.state FROM journal_task AS task JOIN journal_scope AS scope ON scope.id = task.entity
WHERE task.entity IN (VALUES (?))
"""
_ENDED: Final = "ended "
"""The start of the channel of a task, which is touched when it ends."""
_MARGIN_MS: Final = 60_000
_MOST_KNOWN: Final = 10_000
_NO_PROGRESS: Final = Progress()

Row = tuple[int, int, int, int, bytes, int, int | None, int, bytes]
"""Tenant, entity, app, type, place, time of receipt, ttl, checksum and body."""
NewEvents = dict[tuple[int, int], list[tuple[bytes, JournalEvent]]]
"""The new events of each task with their places, by the numbers of tenant and entity."""


class SQLiteRecords:
    """Entries in the engine's file; an append inside `engine.transaction()` commits with the other writes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scopes = Scopes()
        self.init()

    def init(self) -> None:
        self._engine.prepare(SCHEMA)

    def add(self, entries: Sequence[Entry], received_at: int, ttl: int | None) -> list[bool | PostroadError]:
        return self._engine.write(lambda tx: self._add(tx, entries, received_at, ttl))

    def has(self, event: JournalEvent) -> bool:
        def look(connection: apsw.Connection) -> bool:
            tenant = self._scopes.find(connection, [event.tenant_id])
            return tenant is not None and one(connection, _HAS, (*tenant, place_of(event))) is not None

        return self._engine.read(look)

    @property
    def expires_itself(self) -> bool:
        return False

    def remove(self, events: Sequence[JournalEvent]) -> None:
        # If a power cut loses it, it is done again; on a full disk it makes room.
        self._engine.write(lambda tx: self._remove(tx.connection, events), durable=False)

    def read(self, query: Query, low: bytes, high: bytes, limit: int) -> list[JournalEvent]:
        tenant, entity = query.tenant, query.entity or ("", "")
        scopes = {
            "tenant": tenant,
            "entity": f"{tenant}#{entity[0]}#{entity[1]}",
            "app": f"{tenant}#APP#{query.app}",
            "kind": f"{tenant}#EVENT#{query.event_type}",
        }
        names = [scopes[column] for column in COLUMNS[query.index]]

        def look(connection: apsw.Connection) -> list[Any]:
            numbers = self._scopes.find(connection, names)
            if numbers is None:
                return []
            searched = [tuple(numbers)]
            if query.index == "GSI2":
                searched = _of_app(connection, numbers[0])
            elif query.index == "GSI4":
                apps = every(connection, _APPS, (f"{tenant}#APP#", f"{tenant}#APP$"))
                searched = [(app, numbers[0]) for (app,) in apps]
            return _merged(connection, SEARCHES[query.index], searched, (low, high), limit, query.descending)

        return [_event(tenant, *row) for row in self._engine.read(look)]

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        def look(connection: apsw.Connection) -> tuple[list[Any], tuple[int, int], bool]:
            end = one(connection, _END) or (0, 0)
            start = end[0] if position is None else _start(connection, position)
            reached = one(connection, _NEXT, (start,))
            if reached is None:
                return [], end, False
            kinds = [self._scopes.find(connection, [f"{tenant}#EVENT#{each}"]) for each in event_types]
            known = msgspec.json.encode([kind[0] for kind in kinds if kind is not None]).decode()
            return every(connection, _BETWEEN, (start, reached[0], known)), reached, reached[0] < end[0]

        rows, (row, received_ms), has_more = self._engine.read(look)
        return Followed([_event(tenant, *row) for row in rows], f"{row}.{received_ms}", has_more)

    def watch(self, tenant: str, entity: Entity, call: Callable[[bool], None]) -> AbstractContextManager[object] | None:
        return self._engine.watch(call, f"{_ENDED}{tenant}#{entity[0]}#{entity[1]}")

    def states(
        self, tenant: str, *, app: str | None, since: int | None, state: str | None = None
    ) -> Iterator[tuple[str, str]]:
        names = [tenant] if app is None else [tenant, f"{tenant}#APP#{app}"]
        numbers = self._engine.read(partial(self._scopes.find, names=names))
        if numbers is None:
            return
        pages = self._all(state, *numbers) if since is None else self._recent(numbers[-1], app, place_before(since))
        for name, found in pages:
            if found and state in (None, found):
                yield name.rpartition("#")[2], found

    def _all(self, state: str | None, tenant: int, *app: int) -> Iterator[tuple[str, str]]:
        statement, last = _TASKS_OF_APP if app else _RUNNING if state == "processing" else _TASKS, 0
        while rows := self._engine.read(partial(every, statement=statement, arguments=(tenant, last, state, *app))):
            yield from ((name, state) for _, name, state in rows)
            last = rows[-1][0]

    def _recent(self, scope: int, app: str | None, place: bytes) -> Iterator[tuple[str, str]]:
        def look(connection: apsw.Connection) -> list[Any]:
            search, scopes = (_RECENT, [(scope,)]) if app is None else (_RECENT_OF_APP, _of_app(connection, scope))
            return _merged(connection, search, scopes, (place, LAST_PLACE), _RECENT_AT_ONCE)

        seen: set[int] = set()
        while rows := self._engine.read(look):
            fresh = {entity for _, entity in rows} - seen
            seen |= fresh
            entities = [(entity,) for entity in sorted(fresh)]
            yield from self._engine.read(partial(run_many, statement=_STATES, rows=entities))
            place = rows[-1][0]

    def _remove(self, connection: apsw.Connection, events: Sequence[JournalEvent]) -> None:
        tenants = {name: self._scopes.find(connection, [name]) for name in {event.tenant_id for event in events}}
        rows = [(*tenant, place_of(event)) for event in events if (tenant := tenants[event.tenant_id]) is not None]
        run_many(connection, _REMOVE, rows)
        names = {_names_of(event)[1] for event in events if event.entity_type == TASK}
        tasks = [found for name in sorted(names) if (found := self._scopes.find(connection, [name])) is not None]
        run_many(connection, _FORGET_TASK, [tuple(task) for task in tasks])

    def _add(
        self, tx: Transaction, entries: Sequence[Entry], received_at: int, ttl: int | None
    ) -> list[bool | PostroadError]:
        connection = tx.connection
        names = [_names_of(entry.event) for entry in entries]
        number, made = self._scopes.make(tx, chain.from_iterable(names))
        rows: list[Row] = [
            (
                number(tenant),
                number(entity),
                number(app),
                number(kind),
                place_of(entry.event),
                received_at,
                ttl,
                zlib.crc32(entry.body),
                entry.body,
            )
            for entry, (tenant, entity, app, kind) in zip(entries, names, strict=True)
        ]
        tasks = {row[1] for entry, row in zip(entries, rows, strict=True) if entry.event.entity_type == TASK}
        before = {
            row[0]: (Progress(*row[1:6]), row[6])
            for row in run_many(connection, _PROGRESS, [(entity,) for entity in tasks if entity not in made])
        }
        new = _inserted(connection, rows)
        by_task: NewEvents = {}
        for entry, row, is_new in zip(entries, rows, new, strict=True):
            if is_new and entry.event.entity_type == TASK:
                by_task.setdefault((row[0], row[1]), []).append((row[4], entry.event))
                if entry.event.event_type in TERMINAL:
                    tx.touch(f"{_ENDED}{_names_of(entry.event)[1]}")
        _set_progress(connection, before, by_task)
        return list(new)


def _of_app(connection: apsw.Connection, app: int) -> list[tuple[int, ...]]:
    """Return the searches of GSI6 that find the events of an app: one for each event type that it has."""
    return [(app, kind) for (kind,) in every(connection, _KINDS, (app,))]


def _merged(
    connection: apsw.Connection,
    search: str,
    scopes: Sequence[tuple[int, ...]],
    places: tuple[bytes, bytes],
    limit: int,
    descending: bool = False,
) -> list[Any]:
    """Return the first rows of one search for each of the scopes, in the order of their places."""
    rows = list[Any]()
    for start in range(0, len(scopes), _MOST_MERGED):
        some = scopes[start : start + _MOST_MERGED]
        arguments = chain.from_iterable((*scope, *places) for scope in some)
        rows += every(connection, in_order(search, len(some), descending=descending), (*arguments, limit))
    # Of more than one statement each has the first rows of its own scopes.
    return sorted(rows, key=itemgetter(0), reverse=descending)[:limit] if len(scopes) > _MOST_MERGED else rows


@lru_cache(maxsize=256)
def in_order(search: str, count: int, *, descending: bool) -> str:
    """Return a statement that merges so many searches, reads from each as much as it returns, and sorts nothing."""
    return f"{' UNION ALL '.join([search] * count)} ORDER BY place {'DESC' if descending else ''} LIMIT ?"


def _inserted(connection: apsw.Connection, rows: Sequence[Row]) -> list[bool]:
    """Insert the rows; return for each whether it is new. Of two equal rows the first is."""
    before = connection.total_changes()
    run_many(connection, _ADD, rows)
    added = connection.total_changes() - before
    if added in (0, len(rows)):
        return [added > 0] * len(rows)
    # Rows are numbered one after the other.
    new = set(every(connection, _SINCE, (connection.last_insert_rowid() - added,)))
    found = []
    for row in rows:
        found.append((row[0], row[4]) in new)
        new.discard((row[0], row[4]))
    return found


def _set_progress(
    connection: apsw.Connection, before: Mapping[int, tuple[Progress, bytes]], by_task: NewEvents
) -> None:
    """Update the progress of each task by its new events, which are inserted already."""
    changed = []
    for (tenant, entity), new in by_task.items():
        progress, latest = before.get(entity, (None, FIRST_PLACE))
        if len(new) > 1:
            new.sort(key=itemgetter(0))
        now = progress or _NO_PROGRESS
        if new[0][0] > latest:
            for _, event in new:
                now = now.after(event.event_type, event.properties)
        else:
            # An event arrived late: fold the whole history again.
            now = _NO_PROGRESS
            for (body,) in every(connection, _HISTORY, (entity,)):
                read = _decode(body)
                now = now.after(read.event_type, read.properties)
        if now != progress:
            changed.append((entity, tenant, now.pendings, now.run, now.state, now.begun, now.decided))
    run_many(connection, _SET_PROGRESS, changed)


def _start(connection: apsw.Connection, position: str) -> int:
    """Return the row after which a position continues. The number of a pruned row may belong to a younger row."""
    row, received_ms = map(int, position.split("."))
    found = one(connection, _RECEIVED, (row,))
    if row == 0 or (found is not None and found[0] == received_ms):
        return row
    return one(connection, _RECEIVED_BEFORE, (received_ms - _MARGIN_MS,))[0] or 0


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row holds of an event besides its tenant and place; `Entry` writes it."""

    event_type: str
    entity_type: str
    entity_id: str
    app: str
    context: dict[str, Any]
    properties: dict[str, Any]


_decode = msgspec.json.Decoder(_Body).decode


def _event(tenant: str, place: bytes, body: bytes, received_ms: int, ttl: int | None, crc: int) -> JournalEvent:
    if zlib.crc32(body) != crc:
        raise StorageDamaged(
            f"event {event_id_of(place)}: its row is not what was written", remedy="Restore the file from a backup."
        )
    read = _decode(body)
    return JournalEvent(
        event_type=read.event_type,
        entity_type=read.entity_type,
        entity_id=read.entity_id,
        tenant_id=tenant,
        app=read.app,
        timestamp=time_of(place),
        event_id=event_id_of(place),
        context=read.context,
        properties=read.properties,
        received_at=received_ms,
        ttl=ttl,
    )


class Scopes:
    """The numbers of tenants, entities, apps and types. A number never changes, so committed ones are cached."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def make(self, tx: Transaction, names: Iterable[str]) -> tuple[Callable[[str], int], Collection[int]]:
        """Return a function that gives the number of each of these names, and the numbers that new names got."""
        known = self._known
        unknown = sorted({name for name in names if name not in known})
        if not unknown:
            return known.__getitem__, ()
        # Most names are new; another process may have made some of them.
        fresh = {name: number for number, name in run_many(tx.connection, _MAKE, [(name,) for name in unknown])}
        made = set(fresh.values())
        fresh |= {name: one(tx.connection, _FIND, (name,))[0] for name in unknown if name not in fresh}
        tx.after_commit(lambda: self._remember(fresh))
        return (lambda name: known.get(name) or fresh[name]), made

    def find(self, connection: apsw.Connection, names: Sequence[str]) -> list[int] | None:
        """Return the numbers of the names, or None if one of them never occurred."""
        numbers = []
        for name in names:
            if (number := self._known.get(name)) is None:
                if (row := one(connection, _FIND, (name,))) is None:
                    return None
                number = int(row[0])
            numbers.append(number)
        return numbers

    def _remember(self, fresh: Mapping[str, int]) -> None:
        if len(self._known) + len(fresh) > _MOST_KNOWN:
            self._known = {}
        self._known.update(fresh)


def _names_of(event: JournalEvent) -> tuple[str, str, str, str]:
    """Return the scopes of an event: its tenant, entity, app and type."""
    tenant = event.tenant_id
    return (
        tenant,
        f"{tenant}#{event.entity_type}#{event.entity_id}",
        f"{tenant}#APP#{event.app}",
        f"{tenant}#EVENT#{event.event_type}",
    )
