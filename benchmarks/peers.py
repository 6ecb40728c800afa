"""The peers, each at its best settings for the same durability: WAL with synchronous=FULL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.frame import Durability, Load, Open, Opened
from benchmarks.workload import Client, move

_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_FULL = "PRAGMA synchronous = FULL"
# None of them waits for messages of another thread; looking again this often is far quicker than their own defaults.
_LOOK_AGAIN_SECONDS = 0.0002
_BUSY_SECONDS = 60.0


class HueyClient:
    """huey's SQLite storage, without the task layer above it. Taking deletes: there is no ack."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def put(self, bodies: Sequence[str]) -> None:
        """Store one after the other; there is no batch."""
        for body in bodies:
            self._storage.enqueue(body.encode())

    def take(self) -> list[str]:
        """Take one."""
        data = self._storage.dequeue()
        return _nothing() if data is None else [bytes(data).decode()]


class LitequeueClient:
    """litequeue, one connection per thread."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def put(self, bodies: Sequence[str]) -> None:
        """Store one after the other; there is no batch."""
        for body in bodies:
            self._queue.put(body)

    def take(self) -> list[str]:
        """Take one and mark it done."""
        message = self._queue.pop()
        if message is None:
            return _nothing()
        self._queue.done(message.message_id)
        return [str(message.data)]


class PersistQueueClient:
    """persist-queue's SQLiteAckQueue, shared by the threads as it is meant to be."""

    def __init__(self, queue: Any, empty: type[Exception]) -> None:
        self._queue = queue
        self._empty = empty

    def put(self, bodies: Sequence[str]) -> None:
        """Store one after the other; there is no batch."""
        for body in bodies:
            self._queue.put(body)

    def take(self) -> list[str]:
        """Take one and ack it."""
        with suppress(self._empty):
            item = self._queue.get(timeout=0.2, raw=True)
            self._queue.ack(id=item["pqid"])
            return [str(item["data"])]
        return []


def moving(peer: str, *, producers: int) -> Open:
    """A side that moves messages through the peer with threads of one process and one consumer."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            clients, connection, tidy = _OPEN[peer](stack, directory, producers + 1)

            def run() -> float:
                rate = move(clients[:-1], clients[-1:], messages=load.messages, batch=1)
                tidy()
                return rate

            yield Opened(run, lambda: _durability(connection()))

    return opened


Opening = tuple[list[Client], Callable[[], sqlite3.Connection], Callable[[], None]]


def _open_huey(stack: ExitStack, directory: Path, threads: int) -> Opening:
    from huey.storage import SqliteStorage

    storage = SqliteStorage(filename=str(directory / "huey.db"), fsync=True, journal_mode="wal", timeout=_BUSY_SECONDS)
    stack.callback(storage.close)
    client = HueyClient(storage)
    return [client] * threads, lambda: storage.conn, lambda: None


def _open_litequeue(stack: ExitStack, directory: Path, threads: int) -> Opening:
    from litequeue import LiteQueue

    queues = [LiteQueue(directory / "litequeue.db", timeout=_BUSY_SECONDS) for _ in range(threads)]
    for queue in queues:
        stack.callback(queue.close)
        # Its own default is NORMAL, which loses acknowledged messages in a power cut.
        queue.conn.execute(_FULL)
    return [LitequeueClient(queue) for queue in queues], lambda: queues[0].conn, queues[0].prune


def _open_persist_queue(stack: ExitStack, directory: Path, threads: int) -> Opening:
    from persistqueue import SQLiteAckQueue
    from persistqueue.exceptions import Empty

    queue: Any = SQLiteAckQueue(str(directory), multithreading=True, timeout=_BUSY_SECONDS)
    stack.callback(queue.close)
    for connection in (queue._getter, queue._putter):
        connection.execute(_FULL)

    def tidy() -> None:
        queue.clear_acked_data(max_delete=0, keep_latest=0)

    client = PersistQueueClient(queue, Empty)
    return [client] * threads, lambda: queue._putter, tidy


_OPEN: dict[str, Callable[[ExitStack, Path, int], Opening]] = {
    "huey": _open_huey,
    "litequeue": _open_litequeue,
    "persist-queue": _open_persist_queue,
}
PEERS = tuple(_OPEN)


def _nothing() -> list[str]:
    time.sleep(_LOOK_AGAIN_SECONDS)
    return []


def _durability(connection: sqlite3.Connection) -> Durability:
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return Durability(journal=str(journal), synchronous=_LEVELS[int(level)])
