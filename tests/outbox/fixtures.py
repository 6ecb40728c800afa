"""An outbox on either database, with plain SQL beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from postroad.connections.database import in_format_style
from postroad.outbox import DomainEvent, Outbox

Connection = Any
"""A psycopg or a sqlite3 connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFixture:
    """An outbox that is initialised, and the database it is in."""

    outbox: Outbox
    dsn: str

    @property
    def on_postgres(self) -> bool:
        return self.outbox.dialect == "postgresql"

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of the application's own; what is not committed at the end is rolled back."""
        connection: Connection = (
            psycopg.connect(self.dsn) if self.on_postgres else sqlite3.connect(self.dsn.removeprefix("sqlite:///"))
        )
        try:
            yield connection
        finally:
            connection.rollback()
            connection.close()

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run plain SQL and commit; a value is marked by `?`."""
        with self.connection() as connection:
            cursor = connection.execute(in_format_style(statement).encode() if self.on_postgres else statement, values)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return rows

    def add(self, **fields: Any) -> DomainEvent:
        """Record one event and commit; it."""
        event = an_event(**fields)
        with self.connection() as connection:
            self.outbox.add(connection, event)
            connection.commit()
        return event

    def set(self, event: DomainEvent, **columns: object) -> None:
        """Change a row by plain SQL."""
        for column, value in columns.items():
            self.run(f"UPDATE outbox SET {column} = ? WHERE event_id = ?", value, str(event.event_id))

    def count(self) -> int:
        """How many rows there are."""
        return int(self.run("SELECT count(*) FROM outbox")[0][0])


def an_event(**fields: Any) -> DomainEvent:
    return DomainEvent(**({"type": "transfers.submitted", "key": {"transferId": "tr_1"}, "payload": {"n": 1}} | fields))


def postgres_fixture(dsn: str, **options: Any) -> OutboxFixture:
    outbox = Outbox.postgres(dsn, **options)
    outbox.init()
    return OutboxFixture(outbox=outbox, dsn=dsn)


def sqlite_fixture(path: Path, **options: Any) -> OutboxFixture:
    outbox = Outbox.sqlite(path, **options)
    outbox.init()
    return OutboxFixture(outbox=outbox, dsn=f"sqlite:///{path}")
