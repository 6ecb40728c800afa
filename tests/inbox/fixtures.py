"""A database with an inbox, and a ledger in which handlers leave their effects."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from postroad.inbox import Inbox

LEDGER = "CREATE TABLE ledger (account text PRIMARY KEY, times int NOT NULL)"
POST = (
    "INSERT INTO ledger (account, times) VALUES ('{}', 1) ON CONFLICT (account) DO UPDATE SET times = ledger.times + 1"
)


class InboxFixture:
    """One database with an inbox and a ledger in it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.inbox = Inbox.open(dsn)

    def connect(self) -> Any:
        """A connection of the driver's own, as an application opens it."""
        if self.dsn.startswith("sqlite:///"):
            return sqlite3.connect(self.dsn.removeprefix("sqlite:///"), check_same_thread=False)
        return psycopg.connect(self.dsn)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement returns; what it changes is committed."""
        with closing(self.connect()) as connection:
            cursor = connection.execute(statement)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
            return list(found)

    def post(self, connection: Any, account: str) -> None:
        """An effect: how often it was made can be counted."""
        connection.execute(POST.format(account))

    def times(self, account: str) -> int:
        """How often the effect was made."""
        found = self.rows(f"SELECT times FROM ledger WHERE account = '{account}'")
        return int(found[0][0]) if found else 0


@contextmanager
def inbox_fixture(dsn: str) -> Iterator[InboxFixture]:
    """A fixture whose tables are made."""
    fixture = InboxFixture(dsn)
    fixture.inbox.init()
    fixture.rows(LEDGER)
    try:
        yield fixture
    finally:
        fixture.inbox.close()
