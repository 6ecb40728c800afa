"""A consumer as a process of its own: `python -m tests.inbox.worker URL QUEUE DSN EFFECTS ON_UNKNOWN FILE`.

Its effect is a row of the ledger; effects outside are lines of a file. It ends by SIGTERM.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from tests.inbox.fixtures import POST

import postroad
from postroad.inbox import Consumer, DomainEvent, Inbox


def main(url: str, queue_name: str, dsn: str, effects: str, on_unknown: str, calls: str) -> None:
    """Consume until SIGTERM, telling that it began."""

    def in_database(event: DomainEvent, connection: Any) -> None:
        connection.execute(POST.format(event.key["transferId"]))

    def outside(event: DomainEvent, effect: Any) -> None:
        with Path(calls).open("a") as out:
            out.write(f"{effect.idempotency_key} {effect.status} {effect.token}\n")

    with postroad.connect(url) as backend, Inbox.open(dsn) as inbox:
        queue = backend.queue(queue_name)
        dead = backend.queue("dead.fifo")
        given: dict[str, Any] = {"effects": effects, "on_unknown": on_unknown, "dead_letters": dead}
        handler = in_database if effects == "database" else outside
        consumer = Consumer(queue, handler, name="ledger", inbox=inbox, **given)
        threading.Thread(target=lambda: os.write(1, b"ready\n")).start()
        consumer.run()
    os.write(1, b"stopped\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
