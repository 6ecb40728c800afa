"""A dispatcher or a bus as a process of its own: `python -m tests.platform.child dispatch|handle URL TOPIC DATABASE`.

It says `ready` when it works, and works until it is killed.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from dataclasses import replace

from tests.platform.events import QUICK, OrderPlaced, note

import postroad
from postroad.inbox import Inbox
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher


def main(role: str, url: str, topic: str, database: str) -> None:
    """Do the work of the role for ever."""
    with postroad.connect(url) as backend:
        if role == "dispatch":
            target = backend.topic(f"{topic}.fifo", fifo=True)
            config = DispatcherConfig(poll=0.05, lease=1.0, target_pause=0.1)
            dispatcher = OutboxDispatcher(Outbox.sqlite(database), target, config, service="shop")
            print("ready", flush=True)
            dispatcher.run()
            return
        lenient = replace(QUICK, visibility_timeout_seconds=1, max_receives=100)
        bus = backend.bus(topic, "billing", fifo=True, inbox=Inbox.sqlite(database), config=lenient)

        @bus.on(OrderPlaced, name="bill")
        def bill(event: OrderPlaced, connection: sqlite3.Connection) -> None:
            note(connection, "bill", event)

        bus.start_receiver()
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
