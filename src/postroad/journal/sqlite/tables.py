"""The tables of the journal on the embedded engine, and the statement that reads each index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import apsw

from postroad.engine import Schema, Transaction, one, run_many
from postroad.journal.event import JournalEvent
from postroad.journal.records import Question

# Tenants, apps, types and entities are numbered in the order of their first event. New events belong to young entities
# for the most part, so every index grows near its end and stays as fast as it was when it was small.
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
    ),
)
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "PK": ("tenant",),
    "GSI1": ("entity",),
    "GSI2": ("app",),
    "GSI3": ("entity", "app"),
    "GSI4": ("kind",),
    "GSI5": ("entity", "kind"),
    "GSI6": ("app", "kind"),
    "GSI7": ("entity", "kind", "app"),
}
"""What each index is asked by, in the order of its parameters."""
_SELECT: Final = "SELECT place, body, received_ms, ttl, crc FROM journal_event INDEXED BY"
_RANGE: Final = "AND place > ? AND place < ? ORDER BY place"
FORWARD: Final = {
    "PK": f"{_SELECT} journal_pk WHERE tenant = ? {_RANGE} LIMIT ?",
    "GSI1": f"{_SELECT} journal_gsi1 WHERE entity = ? {_RANGE} LIMIT ?",
    "GSI2": f"{_SELECT} journal_gsi2 WHERE app = ? {_RANGE} LIMIT ?",
    "GSI3": f"{_SELECT} journal_gsi3 WHERE entity = ? AND app = ? {_RANGE} LIMIT ?",
    "GSI4": f"{_SELECT} journal_gsi4 WHERE kind = ? {_RANGE} LIMIT ?",
    "GSI5": f"{_SELECT} journal_gsi5 WHERE entity = ? AND kind = ? {_RANGE} LIMIT ?",
    "GSI6": f"{_SELECT} journal_gsi6 WHERE app = ? AND kind = ? {_RANGE} LIMIT ?",
    "GSI7": f"{_SELECT} journal_gsi7 WHERE entity = ? AND kind = ? AND app = ? {_RANGE} LIMIT ?",
}
BACKWARD: Final = {
    index: statement.replace("ORDER BY place", "ORDER BY place DESC") for index, statement in FORWARD.items()
}


_FIND: Final = "SELECT id FROM journal_scope WHERE name = ?"
_MAKE: Final = "INSERT INTO journal_scope (name) VALUES (?) ON CONFLICT DO NOTHING RETURNING id, name"
_MOST_KNOWN: Final = 50_000


class Scopes:
    """Finds and makes numbers. A number is for ever, so what is committed is known without asking again."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def make(self, tx: Transaction, names: Iterable[str]) -> Callable[[str], int]:
        """What gives the number of each of these names; those that have none get one."""
        known = self._known
        unknown = {name for name in names if name not in known}
        if not unknown:
            return known.__getitem__
        fresh = _made(tx.connection, sorted(unknown))
        tx.after_commit(lambda: self._remember(fresh))
        return lambda name: known.get(name) or fresh[name]

    def find(self, connection: apsw.Connection, names: Sequence[str]) -> list[int] | None:
        """The numbers of the names, or None when one of them never occurred."""
        numbers = []
        for name in names:
            number = self._known.get(name) or _find(connection, name)
            if number is None:
                return None
            numbers.append(number)
        return numbers

    def _remember(self, fresh: Mapping[str, int]) -> None:
        if len(self._known) + len(fresh) > _MOST_KNOWN:
            self._known = {}
        self._known.update(fresh)


def names_of(event: JournalEvent) -> tuple[str, str, str, str]:
    """The scopes of an event: its tenant, entity, app and type."""
    tenant = event.tenant_id
    return (
        tenant,
        f"{tenant}#{event.entity_type}#{event.entity_id}",
        f"{tenant}#APP#{event.app}",
        name_of_kind(tenant, event.event_type),
    )


def name_of_kind(tenant: str, event_type: str | None) -> str:
    """The scope of a type within a tenant."""
    return f"{tenant}#EVENT#{event_type}"


def names_asked(question: Question, columns: Sequence[str]) -> list[str]:
    """The scopes that a question names, in the order of the columns."""
    tenant, entity = question.tenant, question.entity or ("", "")
    names = {
        "tenant": tenant,
        "entity": f"{tenant}#{entity[0]}#{entity[1]}",
        "app": f"{tenant}#APP#{question.app}",
        "kind": name_of_kind(tenant, question.event_type),
    }
    return [names[column] for column in columns]


def _made(connection: apsw.Connection, names: Sequence[str]) -> dict[str, int]:
    """The numbers of names that are not known here: most are new, some were made by another process."""
    made = {name: number for number, name in run_many(connection, _MAKE, [(name,) for name in names])}
    return made | {name: one(connection, _FIND, (name,))[0] for name in names if name not in made}


def _find(connection: apsw.Connection, name: str) -> int | None:
    row = one(connection, _FIND, (name,))
    return None if row is None else int(row[0])
