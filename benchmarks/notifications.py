"""The row of the chat pipeline: missed messages stored and their pushes queued, beside a loop written by hand."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from postroad import Backend, OutgoingMessage, Queue, QueueSpec, connect
from postroad.notifications import NotificationStore, NotificationWorker, OfflineMessage

_USERS = 50
_PATIENCE = 600.0
_TABLES = """
CREATE TABLE offline_messages (user_id TEXT, message_id TEXT, conversation_id TEXT, sender_id TEXT, content TEXT,
  sent_at TEXT, stored_at TEXT, delivered_at TEXT, PRIMARY KEY (user_id, message_id));
CREATE TABLE devices (token TEXT PRIMARY KEY, user_id TEXT, dropped_at TEXT);
CREATE INDEX devices_live ON devices (user_id) WHERE dropped_at IS NULL;
CREATE TABLE outbox (id TEXT PRIMARY KEY, payload TEXT, state TEXT DEFAULT 'PENDING', createdat TEXT);
"""
_KEEP = "INSERT INTO offline_messages VALUES (?, ?, ?, ?, ?, ?, ?, NULL) ON CONFLICT DO NOTHING"
_DEVICES = "SELECT token FROM devices WHERE user_id = ? AND dropped_at IS NULL"
_RECORD = "INSERT INTO outbox (id, payload, createdat) VALUES (?, ?, ?)"
_PENDING = "SELECT id, payload FROM outbox WHERE state = 'PENDING' LIMIT 50"
_SENT = "UPDATE outbox SET state = 'SENT' WHERE id = ?"
Move = Callable[[int], None]
"""Moves so many messages from the one queue, through the database, to the other."""


def _moving(prepare: Callable[[Backend, Path], AbstractContextManager[Move]]) -> Open:
    """A side that stores every missed message and queues its push; messages per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with connect(f"sqlite:///{directory}/bus.db") as backend:
            offline, pushes = (backend.create_queue(QueueSpec(name)) for name in ("offline", "push"))
            with prepare(backend, directory) as move:
                yield Opened(lambda: _round(offline, pushes, move, load.messages))

    return opened


def _round(offline: Queue, pushes: Queue, move: Move, messages: int) -> float:
    batch = time.monotonic_ns()
    bodies = [_message(f"{batch}-{number}", number % _USERS).to_json() for number in range(messages)]
    for first in range(0, messages, 10):
        offline.send([OutgoingMessage(body) for body in bodies[first : first + 10]])
    started = time.perf_counter()
    move(messages)
    elapsed = time.perf_counter() - started
    ids: set[str] = set()
    while found := pushes.receive(max_messages=10):
        ids.update(delivery.attributes["PushId"] for delivery in found)
        pushes.ack(found)
    if len(ids) != messages or offline.stats().visible:
        raise WrongResult(f"{len(ids)} of {messages} pushes were queued")
    return messages / elapsed


def _message(message_id: str, user: int) -> OfflineMessage:
    return OfflineMessage(f"user{user}", message_id, "conv_456", "user_999", "Hey, are you there?", datetime.now(UTC))


@contextmanager
def _ours(backend: Backend, directory: Path) -> Iterator[Move]:
    with NotificationStore(f"sqlite:///{directory}/chat.db") as store:
        for user in range(_USERS):
            store.register_device(f"user{user}", f"token{user}")
        pushes = backend.queue("push")

        def move(messages: int) -> None:
            worker = NotificationWorker(backend, store, push_queue="push", offline_queue="offline")
            stop = threading.Event()
            running = threading.Thread(target=worker.run, args=(stop,))
            running.start()
            deadline = time.monotonic() + _PATIENCE
            while pushes.stats().visible < messages and time.monotonic() < deadline:
                time.sleep(0.005)
            stop.set()
            running.join()

        yield move


@contextmanager
def _bare(backend: Backend, directory: Path) -> Iterator[Move]:
    with closing(sqlite3.connect(f"{directory}/chat.db", isolation_level=None)) as connection:
        connection.executescript(_TABLES)
        devices = [(f"token{user}", f"user{user}") for user in range(_USERS)]
        connection.executemany("INSERT INTO devices VALUES (?, ?, NULL)", devices)
        offline, pushes = backend.queue("offline"), backend.queue("push")

        def move(messages: int) -> None:
            while found := offline.receive(max_messages=10):
                for delivery in found:
                    _keep(connection, delivery.body)
                offline.ack(found)
                _relay(connection, pushes)

        yield move


def _keep(connection: sqlite3.Connection, body: bytes) -> None:
    message, now = json.loads(body), datetime.now(UTC).isoformat()
    user, name = message["userId"], message["messageId"]
    connection.execute("BEGIN IMMEDIATE")
    values = (user, name, message["conversationId"], message["senderId"], message["content"], message["timestamp"], now)
    connection.execute(_KEEP, values)
    tokens = [token for (token,) in connection.execute(_DEVICES, (user,))]
    payload = {"title": "New message", "body": f"{message['senderId']}: {message['content']}", "data": {}}
    push = {"type": "push_notification", "userId": user, "deviceTokens": tokens, "payload": payload}
    digest = hashlib.sha256(f"{user}\n{name}".encode()).hexdigest()
    push_id = f"offline:{digest[:32]}"
    connection.execute(_RECORD, (push_id, json.dumps({**push, "timestamp": message["timestamp"]}), now))
    connection.execute("COMMIT")


def _relay(connection: sqlite3.Connection, pushes: Queue) -> None:
    rows = connection.execute(_PENDING).fetchall()
    pushes.send([OutgoingMessage(payload, {"PushId": push_id}) for push_id, payload in rows])
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_SENT, [(push_id,) for push_id, _ in rows])
    connection.execute("COMMIT")


ROWS = [
    Row(
        name="offline-stored",
        unit="per_second",
        target=0.5,
        loads=Loads(full=Load(messages=2_000), quick=Load(messages=500), smallest=Load(messages=20)),
        what="missed messages stored with their pushes, and the pushes queued, on SQLite",
        ours=Side(label="NotificationWorker", package="postroad", open=_moving(_ours)),
        peer=Side(label="bare loop of the same SQL and sends", package="postroad", open=_moving(_bare)),
    ),
]
