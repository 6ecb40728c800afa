"""The services' database: PostgreSQL or a SQLite file, with the driver's own connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from examples.transfers.names import OUTBOXES

from postroad.inbox import Inbox
from postroad.outbox import Outbox

_SQLITE = "sqlite:///"
_BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE transfers (id text PRIMARY KEY, tenant text NOT NULL, amount text NOT NULL, state text NOT NULL);
CREATE TABLE rail_calls (seq {counting}, idempotency_key text NOT NULL);
CREATE TABLE ledger_entries (transfer_id text, type text, amount text NOT NULL, PRIMARY KEY (transfer_id, type));
CREATE TABLE timeline (seq {counting}, transfer_id text NOT NULL, type text NOT NULL);
CREATE TABLE route_cache (tenant text PRIMARY KEY, invalidations int NOT NULL);
CREATE TABLE violations (transfer_id text NOT NULL, type text NOT NULL);
CREATE TABLE suppressed (consumer text PRIMARY KEY, duplicates int NOT NULL);
"""
_COUNTING = {True: "integer PRIMARY KEY AUTOINCREMENT", False: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"}
_OWN = ("transfers", "rail_calls", "ledger_entries", "timeline", "route_cache", "violations", "suppressed")
_BESIDE_OUTBOX = ("", "_audit", "_meta", "_gaps", "_parked")
_BESIDE_INBOX = ("inbox", "inbox_audit", "inbox_meta")


@contextmanager
def transaction(dsn: str) -> Iterator[Any]:
    """One transaction on a connection of its own."""
    if dsn.startswith(_SQLITE):
        connection: Any = sqlite3.connect(dsn.removeprefix(_SQLITE), timeout=_BUSY_SECONDS, isolation_level="IMMEDIATE")
    else:
        connection = psycopg.connect(dsn)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def run(connection: Any, statement: str, values: Sequence[object] = ()) -> Any:
    """Run one statement, in which `?` stands for a value, on either driver's connection."""
    return connection.execute(statement if is_sqlite(connection) else statement.replace("?", "%s"), values)


def is_sqlite(connection: Any) -> bool:
    """Whether the connection is one to SQLite."""
    return isinstance(connection, sqlite3.Connection)


def make_tables(dsn: str) -> None:
    """Make everything new; what an earlier run left is removed."""
    if dsn.startswith(_SQLITE):
        _let_readers_and_a_writer_work_at_once(dsn)
    with transaction(dsn) as connection:
        outboxes = [f"{outbox}{part}" for outbox in OUTBOXES for part in _BESIDE_OUTBOX]
        for table in (*_OWN, *outboxes, *_BESIDE_INBOX):
            run(connection, f"DROP TABLE IF EXISTS {table}")
        for statement in _TABLES.format(counting=_COUNTING[is_sqlite(connection)]).split(";\n"):
            if statement.strip():
                run(connection, statement)
    for table in OUTBOXES:
        outbox = Outbox.open(dsn, table=table)
        outbox.init()
        outbox.close()
    with Inbox.open(dsn) as inbox:
        inbox.init()


def _let_readers_and_a_writer_work_at_once(dsn: str) -> None:
    connection = sqlite3.connect(dsn.removeprefix(_SQLITE), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
