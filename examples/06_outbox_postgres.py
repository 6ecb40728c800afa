"""An outbox on PostgreSQL: an order and its event commit together, or neither does.

Run it: PG_DSN=postgresql://app@localhost/app python examples/06_outbox_postgres.py
"""

from __future__ import annotations

import os
import tempfile

import psycopg

import postroad
from postroad.outbox import Outbox, OutboxDispatcher

TABLE = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount integer NOT NULL CHECK (amount > 0))"
INSERT = "INSERT INTO orders VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount"


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str
    amount: int


def place(connection: psycopg.Connection, outbox: Outbox, order_id: str, amount: int) -> None:
    """Insert the order and record its event, in one transaction of the application's own."""
    with connection.transaction():
        outbox.add(connection, OrderPlaced(order_id, amount), key={"orderId": order_id})
        connection.execute(INSERT, (order_id, amount))


def main(dsn: str, url: str) -> None:
    with Outbox.postgres(dsn) as outbox, psycopg.connect(dsn) as connection, postroad.connect(url) as backend:
        outbox.init()
        connection.execute(TABLE)
        connection.commit()

        place(connection, outbox, "A-1", 30)
        try:
            place(connection, outbox, "A-2", -5)
        except psycopg.errors.CheckViolation:
            print("A-2 is refused by the database, and so is its event")

        billing = backend.bus("orders", "billing")
        billing.subscribe(OrderPlaced, lambda event: print(f"billing sends an invoice over {event.amount}"))
        report = OutboxDispatcher(outbox, backend.topic("orders")).drain()  # in production: postroad outbox run
        print(f"{report.sent} event was published")
        billing.receive_once()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(os.environ["PG_DSN"], f"sqlite:///{directory}/postroad.db")
