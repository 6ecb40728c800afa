"""Scene `outbox`: transfers between accounts, recorded with their events and posted exactly once; they sum up to 0."""

from __future__ import annotations

import sqlite3

from postroad.events import DomainEvent
from postroad.inbox import Consumer, Inbox
from postroad.outbox import Outbox
from postroad.queues import QueueSpec
from postroad.up.demo.database import DemoDatabase, record_effect, record_published
from postroad.up.demo.stage import Stage
from postroad.wiring import Backend

SCENE, TOPIC = "outbox", "demo-transfers.fifo"
QUEUE, DEAD = "demo-ledger.fifo", "demo-ledger-dlq.fifo"
ACCOUNTS = ("ann", "bob", "cora", "dan", "eve", "finn", "gus", "hana")
TRANSIT = "in transit"
_MOVE = "INSERT INTO account VALUES (?1, ?2) ON CONFLICT DO UPDATE SET balance = balance + ?2"


def prepare(backend: Backend, database: DemoDatabase) -> None:
    """Create the tables of outbox and inbox, the topic and the queue of the ledger."""
    with Outbox.sqlite(database.path) as outbox, Inbox.sqlite(database.path) as inbox:
        outbox.init()
        inbox.init()
    backend.create_queue(QueueSpec(DEAD, fifo=True))
    queue = backend.create_queue(QueueSpec(QUEUE, fifo=True, dead_letter=DEAD, max_receives=5))
    backend.topic(TOPIC, fifo=True).subscribe(queue)


def play(stage: Stage) -> None:
    """Transfer money and post the transfers until the stage stops; the part `dispatcher` publishes in between."""
    outbox = Outbox.sqlite()
    with Inbox.sqlite(stage.database.path) as inbox:
        queue = stage.backend.queue(QUEUE)
        ledger = Consumer(queue, post, name="ledger", inbox=inbox, types=["transfers.*"])
        with stage.working(ledger.run):
            for _ in stage.beats(4):
                sender, receiver = stage.chance.sample(ACCOUNTS, k=2)
                amount = round(stage.chance.lognormvariate(8, 1))
                payload = {"to": receiver, "cents": amount}
                event = DomainEvent("transfers.submitted", key={"account": sender}, payload=payload)
                # The sender is debited and the event recorded, or neither of both.
                with stage.database.transaction() as connection:
                    connection.execute(_MOVE, (sender, -amount))
                    connection.execute(_MOVE, (TRANSIT, amount))
                    outbox.add(connection, event)
                    record_published(connection, SCENE, str(event.event_id))


def post(event: DomainEvent, connection: sqlite3.Connection) -> None:
    """Credit the receiver, in the transaction that writes the event's row in the inbox."""
    amount = event.payload["cents"]
    connection.execute(_MOVE, (TRANSIT, -amount))
    connection.execute(_MOVE, (event.payload["to"], amount))
    record_effect(connection, SCENE, str(event.event_id), "ledger")
