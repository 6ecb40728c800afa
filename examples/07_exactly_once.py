"""An event that is delivered twice, to a handler that failed once: its effect is made exactly once.

Run it: python examples/07_exactly_once.py
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing

import postroad
from postroad import OutgoingMessage, codec
from postroad.inbox import Consumer, Inbox


@postroad.event(name="examples.payment-received")
class PaymentReceived:
    account: str
    amount: int


attempts: list[str] = []


def book(event: PaymentReceived, connection: sqlite3.Connection) -> None:
    """Change the balance; this transaction also writes the event's row in the inbox."""
    connection.execute("UPDATE accounts SET balance = balance + ? WHERE name = ?", (event.amount, event.account))
    attempts.append(event.account)
    if len(attempts) == 1:
        raise ConnectionError("the first attempt fails after its update, which is rolled back")


def main(folder: str) -> None:
    ledger = f"{folder}/ledger.db"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)")
        connection.execute("INSERT INTO accounts VALUES ('ann', 100)")
    with Inbox.sqlite(ledger) as inbox, postroad.connect(f"sqlite:///{folder}/postroad.db") as backend:
        inbox.init()
        queue = backend.create_queue(postroad.QueueSpec("payments"))
        body = codec.encode(codec.wrap(PaymentReceived("ann", 25), publisher_id="bank"))
        queue.send([OutgoingMessage(body), OutgoingMessage(body)])  # as after a publish that was tried again

        consumer = Consumer(queue, book, name="ledger", inbox=inbox, types=[PaymentReceived])
        reports = [consumer.run_once() for _ in range(2)]  # in production: consumer.run()

    with closing(sqlite3.connect(ledger)) as connection:
        [(balance,)] = connection.execute("SELECT balance FROM accounts")
    print(f"failed: {sum(each.failed for each in reports)}, handled: {sum(each.handled for each in reports)}")
    print(f"duplicates: {sum(each.duplicates for each in reports)}")
    print(f"ann has {balance}")
    assert balance == 125


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
