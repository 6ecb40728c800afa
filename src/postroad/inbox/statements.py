"""The tables and statements of an inbox, for PostgreSQL and SQLite.

`{inbox}`, `{meta}` and `{audit}` stand for the tables, other names in braces for what the two databases write
differently, and `?` for a value. All times are those of the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from postroad.connections import Dialect

SCHEMA_VERSION = 1

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {inbox} (
  consumer text NOT NULL,
  eventid text NOT NULL,
  processedat {time} DEFAULT {default_now},
  startedat {time},
  status text NOT NULL DEFAULT 'done',
  attempt int NOT NULL DEFAULT 1,
  token bigint,
  fingerprint text,
  leaseuntil {time},
  PRIMARY KEY (consumer, eventid)
){without_rowid};
CREATE INDEX IF NOT EXISTS {table}_done ON {inbox} (processedat) WHERE status = 'done';
CREATE INDEX IF NOT EXISTS {table}_started ON {inbox} (startedat) WHERE status = 'started';
CREATE TABLE IF NOT EXISTS {audit} (
  seq {counting},
  at {time} NOT NULL DEFAULT {default_now},
  actor text NOT NULL,
  action text NOT NULL,
  consumer text NOT NULL,
  eventid text NOT NULL,
  reason text NOT NULL
);
CREATE TABLE IF NOT EXISTS {meta} (version int NOT NULL);
"""
_CONDITIONS: Final = {
    "mine": "consumer = ? AND eventid = ? AND status = 'started' AND token = ?",
    "abandoned": "status = 'started' AND coalesce(leaseuntil <= {now}, true)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """The statements of one inbox."""

    lock: str
    tables: str = _TABLES
    version: str = "SELECT version FROM {meta}"
    set_version: str = "INSERT INTO {meta} (version) VALUES (?)"
    # The primary key recognises copies: the second one waits here for the end of the first one's transaction.
    first: str = """
INSERT INTO {inbox} (consumer, eventid, fingerprint) VALUES (?, ?, ?) ON CONFLICT (consumer, eventid) DO NOTHING"""
    # Writes nothing, and fails where nothing can be written.
    try_to_write: str = "INSERT INTO {inbox} (consumer, eventid) SELECT '', '' WHERE false RETURNING 1"
    fingerprint: str = "SELECT fingerprint FROM {inbox} WHERE consumer = ? AND eventid = ?"
    # Tokens also grow with the clock, so that those of a forgotten effect are never used again.
    begin: str = """
INSERT INTO {inbox} AS held (consumer, eventid, status, processedat, startedat, leaseuntil, attempt, token)
VALUES (?, ?, 'started', NULL, {now}, {later}, 1, {ticks})
ON CONFLICT (consumer, eventid) DO UPDATE SET startedat = excluded.startedat, leaseuntil = excluded.leaseuntil,
  attempt = held.attempt + 1, token = {greatest}(coalesce(held.token, 0) + 1, excluded.token)
WHERE held.status = 'started' AND coalesce(held.leaseuntil <= excluded.startedat, true)
RETURNING attempt, token"""
    look: str = "SELECT status, attempt, coalesce(token, 0), {left} FROM {inbox} WHERE consumer = ? AND eventid = ?"
    renew: str = "UPDATE {inbox} SET leaseuntil = {later} WHERE {mine}"
    abandon: str = "UPDATE {inbox} SET leaseuntil = {now} WHERE {mine}"
    finish: str = "UPDATE {inbox} SET status = 'done', processedat = {now}, leaseuntil = NULL WHERE {mine}"
    forget: str = "DELETE FROM {inbox} WHERE {mine}"
    unknown: str = """
SELECT consumer, eventid, attempt, coalesce(token, 0) FROM {inbox}
 WHERE {abandoned} AND (CAST(? AS text) IS NULL OR consumer = ?) ORDER BY startedat LIMIT ?"""
    resolve_done: str = """
UPDATE {inbox} SET status = 'done', processedat = {now}, leaseuntil = NULL
 WHERE consumer = ? AND eventid = ? AND {abandoned}"""
    resolve_not_done: str = "DELETE FROM {inbox} WHERE consumer = ? AND eventid = ? AND {abandoned}"
    audit: str = "INSERT INTO {audit} (actor, action, consumer, eventid, reason) VALUES (?, ?, ?, ?, ?)"
    processed: str = "SELECT eventid FROM {inbox} WHERE consumer = ? AND status = 'done' AND eventid IN ({among})"
    event_ids: str = """
SELECT eventid FROM {inbox} WHERE consumer = ? AND status = 'done' AND eventid > ? ORDER BY eventid LIMIT ?
"""
    prune: str
    clock: Callable[[], tuple[int, ...]] = tuple
    """Returns the last value of `begin`, for the token, where the clock of the database is too coarse."""


_POSTGRES: Final = Statements(
    lock="SELECT pg_advisory_xact_lock(hashtext('postroad {inbox}'))",
    prune="""
DELETE FROM {inbox} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {inbox}
 WHERE status = 'done' AND processedat <= {later} ORDER BY processedat LIMIT ? FOR UPDATE SKIP LOCKED))""",
)
_SQLITE: Final = Statements(
    # A writing transaction on SQLite is a lock already.
    lock="SELECT 1",
    prune="""
DELETE FROM {inbox} WHERE (consumer, eventid) IN (SELECT consumer, eventid FROM {inbox}
 WHERE status = 'done' AND processedat <= {later} ORDER BY processedat LIMIT ?)""",
    # In one of SQLite's milliseconds an effect can be begun, forgotten and begun again.
    clock=lambda: (time.time_ns() // 1_000,),
)
_POSTGRES_PHRASES: Final = {
    "time": "timestamptz",
    "default_now": "now()",
    "without_rowid": "",
    "counting": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "now": "clock_timestamp()",
    "later": "clock_timestamp() + make_interval(secs => ?)",
    "ticks": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    "greatest": "greatest",
    "left": "CAST(extract(epoch FROM leaseuntil - clock_timestamp()) AS float8)",
    "among": "SELECT jsonb_array_elements_text(CAST(? AS jsonb))",
}
_SQLITE_PHRASES: Final = {
    "time": "text",
    "default_now": "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
    "without_rowid": " WITHOUT ROWID",
    "counting": "integer PRIMARY KEY AUTOINCREMENT",
    "now": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    "later": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ? || ' seconds')",
    "ticks": "?",
    "greatest": "max",
    "left": "round((julianday(leaseuntil) - julianday('now')) * 86400.0, 3)",
    "among": "SELECT value FROM json_each(?)",
}


def statements(dialect: Dialect, *, table: str, schema: str | None) -> Statements:
    tables = {"inbox": table, "meta": f"{table}_meta", "audit": f"{table}_audit"}
    qualified = {name: f'"{each}"' if schema is None else f'"{schema}"."{each}"' for name, each in tables.items()}
    written, phrases = (_POSTGRES, _POSTGRES_PHRASES) if dialect == "postgresql" else (_SQLITE, _SQLITE_PHRASES)
    filled: dict[str, Any] = {}
    for field in fields(Statements):
        if isinstance(statement := getattr(written, field.name), str):
            for name, text in {**_CONDITIONS, **phrases, **qualified, "table": table}.items():
                statement = statement.replace(f"{{{name}}}", text)
            filled[field.name] = statement
    return replace(written, **filled)
