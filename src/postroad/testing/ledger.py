"""The ledger: effects that can be counted. Each handled event moves one unit, in the handler's own transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TABLES = (
    "CREATE TABLE IF NOT EXISTS ledger (sub text NOT NULL, event_id text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS balance (sub text PRIMARY KEY, units integer NOT NULL)",
)
_WRITE = (
    "INSERT INTO ledger (sub, event_id) VALUES (?, ?)",
    "INSERT INTO balance (sub, units) VALUES (?, 1) ON CONFLICT (sub) DO UPDATE SET units = balance.units + 1",
)


def create(connection: Any) -> None:
    """Create the tables of the ledger, unless they exist."""
    for statement in _TABLES:
        connection.execute(statement)


def record(connection: Any, sub: str, event_id: str) -> None:
    """Record in the caller's transaction that a handler of `sub` took effect for the event.

    Nothing here prevents a second effect: that is what is being counted.

    Args:
        connection: An open connection of `sqlite3` or psycopg, in the transaction of the effect.
        sub: The subscription whose handler this is.
        event_id: The event that was handled.
    """
    statements = _WRITE if type(connection).__module__ == "sqlite3" else [each.replace("?", "%s") for each in _WRITE]
    for statement, values in zip(statements, ((sub, str(event_id)), (sub,)), strict=True):
        connection.execute(statement, values)


def effects(connection: Any) -> Iterator[tuple[str, str]]:
    """Yield (sub, event id) of every effect."""
    yield from connection.execute("SELECT sub, event_id FROM ledger")


def balances(connection: Any) -> dict[str, int]:
    """Return how many units each subscription has moved."""
    return dict(connection.execute("SELECT sub, units FROM balance").fetchall())
