"""One role, played in a process of its own until SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from examples.transfers import bus, cts, directory, gateway, ledger, projections
from examples.transfers.database import run, transaction
from examples.transfers.names import OUTBOXES, QUEUES, dead_letters_of

import postroad
from postroad import Backend
from postroad.errors import PostroadError
from postroad.inbox import Consumer, Inbox
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher

# Short, so that the keys of a killed dispatcher are taken over soon.
_DISPATCH = DispatcherConfig(lease=3.0, poll=0.2)
_SUPPRESS = """
INSERT INTO suppressed (consumer, duplicates) VALUES (?, ?)
ON CONFLICT (consumer) DO UPDATE SET duplicates = suppressed.duplicates + excluded.duplicates
"""


def main(role: str, dsn: str, url: str, number: int) -> None:
    """Play the role until told to stop; those that make something end when it is made."""
    logging.basicConfig(level=logging.ERROR)
    if role == "cts":
        cts.submit(dsn, number)
    elif role == "directory":
        directory.update_routes(dsn, number)
    else:
        with postroad.connect(url) as backend:
            (dispatch if role == "dispatcher" else consume)(role, backend, dsn, _told_to_stop())


def dispatch(role: str, backend: Backend, dsn: str, stop: threading.Event) -> None:
    """Move the events of all outboxes onto the topic."""
    with ExitStack() as stack:
        for table in OUTBOXES:
            outbox = Outbox.open(dsn, table=table)
            stack.callback(outbox.close)
            dispatcher = OutboxDispatcher(outbox, bus.transfers(backend), _DISPATCH, service=table)
            dispatcher.start()
            stack.callback(dispatcher.stop)
        stop.wait()


def consume(role: str, backend: Backend, dsn: str, stop: threading.Event) -> None:
    """Hand the role's queue to its handler, and count what came twice."""
    with Inbox.open(dsn) as inbox:
        consumer = consumer_of(role, backend, inbox, dsn)
        while not stop.is_set():
            try:
                report = consumer.run_once(wait=0.5)
            except PostroadError:
                continue
            if report.duplicates:
                with transaction(dsn) as connection:
                    run(connection, _SUPPRESS, (role, report.duplicates))


def consumer_of(role: str, backend: Backend, inbox: Inbox, dsn: str) -> Consumer:
    """The consumer of a role. The rail knows its keys, so that the gateway may try an unknown outcome again."""
    queue, letters = backend.queue(QUEUES[role]), backend.queue(dead_letters_of(QUEUES[role]))
    # SQLite lets one writer in at a time; threads would only wait for each other.
    given: dict[str, Any] = {"concurrency": 1 if dsn.startswith("sqlite:") else 4, "dead_letters": letters}
    if role == "gateway":
        rail = gateway.handler(inbox, Outbox.open(dsn, table="gateway_outbox"))
        return Consumer(queue, rail, name=role, inbox=inbox, effects="external", on_unknown="retry", **given)
    handlers: dict[str, Callable[..., None]] = {
        "ledger": ledger.post, "projections": projections.note, "cts-inbound": cts.inbound
    }  # fmt: skip
    return Consumer(queue, handlers[role], name=role, inbox=inbox, **given)


def _told_to_stop() -> threading.Event:
    """Set by SIGTERM, and when whoever started this process is gone."""
    stop, parent = threading.Event(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def watch() -> None:
        while not stop.wait(1.0):
            if os.getppid() != parent:
                stop.set()

    threading.Thread(target=watch, daemon=True).start()
    return stop
