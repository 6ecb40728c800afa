"""The state of each task, kept beside its events and written in the same commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

import apsw

from postroad.connections.engine import Engine
from postroad.connections.fetching import every, one
from postroad.connections.many import run_many
from postroad.connections.transaction import Transaction
from postroad.journal.event import JournalEvent
from postroad.journal.folding import Progress
from postroad.journal.places import FIRST, before
from postroad.journal.records import read_body
from postroad.journal.sqlite.scopes import Scopes

_KEPT: Final = """
SELECT entity, latest, pendings, run, state, begun, decided FROM journal_task WHERE entity IN (VALUES (?))
"""
_KEEP: Final = """
INSERT OR REPLACE INTO journal_task (entity, tenant, latest, pendings, run, state, begun, decided)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_HISTORY: Final = "SELECT place, body FROM journal_event INDEXED BY journal_gsi1 WHERE entity = ? ORDER BY place"
_PAGE: Final = """
SELECT task.latest, task.entity, scope.name, task.state
FROM journal_task AS task JOIN journal_scope AS scope ON scope.id = task.entity
WHERE task.tenant = ? AND (task.latest, task.entity) > (?, ?) ORDER BY task.latest, task.entity LIMIT 1000
"""
_OF_APP: Final = (
    "SELECT 1 FROM journal_event INDEXED BY journal_gsi3 WHERE entity = ? AND app = ? AND place > ? LIMIT 1"
)


_BY_PLACE = itemgetter(0)
_NOTHING = Progress()
Place = tuple[bytes, int]
"""Where a list of tasks goes on: behind this latest event and this entity."""


News = list[tuple[bytes, JournalEvent]]
"""New events of one task with their places."""


def keep_states(tx: Transaction, news: Mapping[tuple[int, int], News]) -> None:
    """Take the new events of this transaction into the states of their tasks."""
    rows = run_many(tx.connection, _KEPT, [(entity,) for _, entity in news])
    kept = {row[0]: (row[1], Progress(*row[2:])) for row in rows}
    changed = [
        _row(tx.connection, kept.get(entity), tenant, entity, new) for (tenant, entity), new in news.items()
    ]  # fmt: skip
    run_many(tx.connection, _KEEP, changed)


def read_states(
    engine: Engine, scopes: Scopes, tenant: str, *, app: str | None, since: int | None
) -> Iterator[tuple[str, str]]:
    """Request id and state of each task with an event in the app and at or after `since`, in short reads."""
    start = FIRST if since is None else before(since)
    found: dict[str, str] = {}
    place: Place | None = (start, 0)
    while place is not None:
        page, place = engine.read(partial(_page, scopes=scopes, tenant=tenant, app=app, start=start, place=place))
        # A task that moved on between two pages is met again further on.
        found.update(page)
    return ((request_id, state) for request_id, state in found.items() if state)


def _row(
    connection: apsw.Connection, kept: tuple[bytes, Progress] | None, tenant: int, entity: int, new: News
) -> tuple[Any, ...]:
    latest, progress = kept or (FIRST, _NOTHING)
    if len(new) > 1:
        new.sort(key=_BY_PLACE)
    if new[0][0] > latest:
        latest = new[-1][0]
        for _, event in new:
            progress = progress.after(event.event_type, event.properties)
    else:
        latest, progress = _anew(connection, entity)
    return (
        entity, tenant, latest, progress.pendings, progress.run, progress.state, progress.begun, progress.decided,
    )  # fmt: skip


def _anew(connection: apsw.Connection, entity: int) -> tuple[bytes, Progress]:
    """The state out of all events: one of them came late."""
    rows = every(connection, _HISTORY, (entity,))
    progress = Progress()
    for _, body in rows:
        read = read_body(body)
        progress = progress.after(read.event_type, read.properties)
    return rows[-1][0], progress


def _page(
    connection: apsw.Connection, *, scopes: Scopes, tenant: str, app: str | None, start: bytes, place: Place
) -> tuple[dict[str, str], Place | None]:
    """The next thousand tasks, and where to go on; None at the end."""
    numbers = scopes.find(connection, [tenant] if app is None else [tenant, f"{tenant}#APP#{app}"])
    if numbers is None:
        return {}, None
    rows = every(connection, _PAGE, (numbers[0], *place))
    wanted = [row for row in rows if app is None or one(connection, _OF_APP, (row[1], numbers[1], start)) is not None]
    page = {name.rpartition("#")[2]: state for _, _, name, state in wanted}
    return page, (rows[-1][0], rows[-1][1]) if rows else None
