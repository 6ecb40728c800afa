"""The bare limit: the same steps as plain SQL in one loop, with nothing around them.

Only the send waits for the disk; lease and delete commit without a sync, as they do in the engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from benchmarks.frame import Durability, Load, Open, Opened
from benchmarks.workload import bodies, check_once

_TABLE = """
CREATE TABLE msg(seq INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, visible_at REAL, receives INTEGER, body TEXT);
CREATE INDEX msg_ready ON msg(queue, visible_at);
"""
_SEND = "INSERT INTO msg(queue, visible_at, receives, body) VALUES (1, ?, 0, ?)"
_CLAIM = "SELECT seq, body FROM msg WHERE queue = 1 AND visible_at <= ? ORDER BY visible_at LIMIT ?"
_LEASE = "UPDATE msg SET visible_at = ?, receives = receives + 1 WHERE seq = ?"
_ACK = "DELETE FROM msg WHERE seq = ?"
_LEVELS = {1: "NORMAL", 2: "FULL"}


def looping(*, batch: int) -> Open:
    """A side that sends, leases and deletes `batch` messages at a time in one thread."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with closing(apsw.Connection(str(directory / "bare.db"))) as db:
            db.pragma("journal_mode", "wal")
            db.execute(_TABLE)

            def durability() -> Durability:
                db.pragma("synchronous", "full")
                return Durability(
                    journal=str(db.pragma("journal_mode")), synchronous=_LEVELS[int(db.pragma("synchronous"))]
                )

            yield Opened(lambda: _loop(db, load.messages, batch), durability)

    return opened


def _loop(db: apsw.Connection, messages: int, batch: int) -> float:
    sent, received = bodies(messages), list[str]()
    started = time.perf_counter()
    for first in range(0, messages, batch):
        received += _step(db, sent[first : first + batch])
    seconds = time.perf_counter() - started
    check_once(sent, received)
    return messages / seconds


def _step(db: apsw.Connection, batch: list[str]) -> list[str]:
    now = time.monotonic()
    db.pragma("synchronous", "full")
    db.execute("BEGIN IMMEDIATE")
    for body in batch:
        db.execute(_SEND, (now, body))
    db.execute("COMMIT")
    db.pragma("synchronous", "normal")
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute(_CLAIM, (now, len(batch))).fetchall()
    for seq, _ in rows:
        db.execute(_LEASE, (now + 600, seq))
    db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")
    for seq, _ in rows:
        db.execute(_ACK, (seq,))
    db.execute("COMMIT")
    return [str(body) for _, body in rows]
