"""The state of each task, kept beside its events and written in the same commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

import apsw

from postroad.engine import Engine, Transaction, every, run_many
from postroad.journal.event import JournalEvent
from postroad.journal.keys import FIRST_PLACE, place_before
from postroad.journal.records import read_body
from postroad.journal.sqlite.tables import Scopes
from postroad.journal.states import Progress

_KEPT: Final = """
SELECT task.entity, task.pendings, task.run, task.state, task.begun, task.decided,
    (SELECT max(place) FROM journal_event INDEXED BY journal_gsi1 WHERE journal_event.entity = task.entity)
FROM journal_task AS task WHERE task.entity IN (VALUES (?))
"""
_KEEP: Final = """
INSERT OR REPLACE INTO journal_task (entity, tenant, pendings, run, state, begun, decided) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_HISTORY: Final = "SELECT body FROM journal_event INDEXED BY journal_gsi1 WHERE entity = ? ORDER BY place"
_TASKS: Final = """
SELECT task.entity, scope.name, task.state FROM journal_task AS task INDEXED BY journal_task_tenant
JOIN journal_scope AS scope ON scope.id = task.entity
WHERE task.tenant = ? AND task.entity > ? ORDER BY task.entity LIMIT 1000
"""
_TASKS_OF_APP: Final = """
SELECT task.entity, scope.name, task.state FROM journal_task AS task INDEXED BY journal_task_tenant
JOIN journal_scope AS scope ON scope.id = task.entity
WHERE task.tenant = ? AND task.entity > ? AND EXISTS (
    SELECT 1 FROM journal_event AS event INDEXED BY journal_gsi3 WHERE event.entity = task.entity AND event.app = ?
) ORDER BY task.entity LIMIT 1000
"""
_RECENT: Final = """
SELECT place, entity FROM journal_event INDEXED BY journal_pk
WHERE tenant = ? AND place > ? ORDER BY place LIMIT 1000
"""
_RECENT_OF_APP: Final = """
SELECT place, entity FROM journal_event INDEXED BY journal_gsi2 WHERE app = ? AND place > ? ORDER BY place LIMIT 1000
"""
_STATES: Final = """
SELECT scope.name, task.state FROM journal_task AS task JOIN journal_scope AS scope ON scope.id = task.entity
WHERE task.entity IN (VALUES (?))
"""
News = list[tuple[bytes, JournalEvent]]
"""New events of one task with their places."""
_BY_PLACE = itemgetter(0)
_NOTHING = Progress()


class Kept:
    """How far tasks were before a transaction's new events."""

    def __init__(self, tx: Transaction, entities: Iterable[int]) -> None:
        self._connection = tx.connection
        rows = run_many(tx.connection, _KEPT, [(entity,) for entity in entities])
        self._tasks = {row[0]: (Progress(*row[1:6]), row[6]) for row in rows}

    def move(self, news: Mapping[tuple[int, int], News]) -> None:
        """Take the new events, which are inserted already, into the states of their tasks."""
        moved = ((tenant, entity, self._after(entity, new)) for (tenant, entity), new in news.items())
        rows = [
            (entity, tenant, now.pendings, now.run, now.state, now.begun, now.decided)
            for tenant, entity, now in moved
            if now is not None
        ]
        run_many(self._connection, _KEEP, rows)

    def _after(self, entity: int, new: News) -> Progress | None:
        """The progress after the new events; None when they change nothing."""
        progress, latest = self._tasks.get(entity, (None, FIRST_PLACE))
        if len(new) > 1:
            new.sort(key=_BY_PLACE)
        now = progress or _NOTHING
        if new[0][0] > latest:
            for _, event in new:
                now = now.after(event.event_type, event.properties)
        else:
            now = _anew(self._connection, entity)
        return None if now == progress else now


def read_states(
    engine: Engine, scopes: Scopes, tenant: str, *, app: str | None, since: int | None
) -> Iterator[tuple[str, str]]:
    """Request id and state of each task with an event in the app and at or after `since`, in short reads."""
    names = [tenant] if app is None else [tenant, f"{tenant}#APP#{app}"]
    numbers = engine.read(partial(scopes.find, names=names))
    if numbers is None:
        return iter(())
    if since is None:
        return _all(engine, *numbers)
    return _recent(engine, _RECENT if app is None else _RECENT_OF_APP, numbers[-1], place_before(since))


def _anew(connection: apsw.Connection, entity: int) -> Progress:
    """The progress out of all events: one of them came late."""
    progress = _NOTHING
    for (body,) in every(connection, _HISTORY, (entity,)):
        read = read_body(body)
        progress = progress.after(read.event_type, read.properties)
    return progress


def _all(engine: Engine, tenant: int, *app: int) -> Iterator[tuple[str, str]]:
    statement, last = _TASKS_OF_APP if app else _TASKS, 0
    while rows := engine.read(partial(every, statement=statement, arguments=(tenant, last, *app))):
        yield from ((_request_id(name), state) for _, name, state in rows if state)
        last = rows[-1][0]


def _recent(engine: Engine, statement: str, scope: int, place: bytes) -> Iterator[tuple[str, str]]:
    seen: set[int] = set()
    while rows := engine.read(partial(every, statement=statement, arguments=(scope, place))):
        fresh = {entity for _, entity in rows} - seen
        seen |= fresh
        states: list[Any] = engine.read(
            partial(run_many, statement=_STATES, rows=[(entity,) for entity in sorted(fresh)])
        )
        yield from ((_request_id(name), state) for name, state in states if state)
        place = rows[-1][0]


def _request_id(scope: str) -> str:
    return scope.rpartition("#")[2]
