"""The events of the platform's tests, and where their effects are written down."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.waiting import eventually

from postroad import event
from postroad.bus import BusConfig, TopicEventBus

QUICK = BusConfig(wait_time_seconds=0, poll_interval_seconds=0.01, retry_delays_seconds=(0,))


@event(name="shop.placed")
class OrderPlaced:
    order_id: str
    number: int = 0


@event(name="shop.shipped")
class OrderShipped:
    order_id: str


class Shop:
    """A database of an application: its outbox, its inbox, and a ledger of effects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS ledger (handler text, order_id text, number int)")

    def ledger(self, handler: str = "bill") -> list[tuple[str, int]]:
        """Return the effects of a handler in the order in which they were committed."""
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            rows = connection.execute(
                "SELECT order_id, number FROM ledger WHERE handler = ? ORDER BY rowid", (handler,)
            )
            return list(rows)


def note(connection: sqlite3.Connection, handler: str, event: OrderPlaced) -> None:
    """Make the effect of a handler."""
    connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (handler, event.order_id, event.number))


def received(bus: TopicEventBus) -> list[object]:
    """Poll until something was handled, and return it."""
    found: list[object] = []

    def something_came() -> bool:
        found.extend(bus.receive_once())
        return bool(found)

    eventually(something_came)
    return found
