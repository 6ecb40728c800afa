"""The tables of the journal on the embedded engine, and the statement that reads each index."""

from __future__ import annotations

from typing import Final

from postroad.engine.schema import Schema

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
