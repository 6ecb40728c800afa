"""The bare limits: the same steps as plain SQL in one loop, with nothing around them.

`looping` is the least SQL that a queue can do with; `repeating` is what the engine itself runs, its counters and trail
included, so that the difference to the engine is the price of the code around its statements.

Only the send waits for the disk; lease and delete commit without a sync, as they do in the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from benchmarks.frame import Durability, Load, Open, Opened
from benchmarks.workload import bodies, check_once
from postroad.engine.disk import CHECKPOINT_PAGES
from postroad.engine.file import WRITER_CACHE_KIB, make_file, open_file
from postroad.engine.transaction import run_many
from postroad.queues.sqlite import claims, state, tables, verbs

Step = Callable[[apsw.Connection, list[str]], list[str]]

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

            yield Opened(lambda: _loop(db, load.messages, batch, _step), durability)

    return opened


def repeating(*, batch: int) -> Open:
    """A side that runs the engine's own statements on the engine's own tables, `batch` messages at a time."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        make_file(directory / "same.db")
        with closing(open_file(directory / "same.db", cache_kib=WRITER_CACHE_KIB)) as db:
            for step in tables.SCHEMA.steps:
                db.execute(step)
            db.wal_autocheckpoint(CHECKPOINT_PAGES)
            db.execute("INSERT INTO tally (queue, next, head, seen_us) VALUES (1, 1, 1, 0)")

            def durability() -> Durability:
                db.pragma("synchronous", "full")
                return Durability(
                    journal=str(db.pragma("journal_mode")), synchronous=_LEVELS[int(db.pragma("synchronous"))]
                )

            yield Opened(lambda: _loop(db, load.messages, batch, _same_step), durability)

    return opened


def _same_step(db: apsw.Connection, batch: list[str]) -> list[str]:
    size, now = len(batch), time.time_ns() // 1_000
    db.pragma("synchronous", "full")
    db.execute("BEGIN IMMEDIATE")
    first = int(db.execute("SELECT next FROM tally WHERE queue = 1").get)
    run_many(
        db,
        state._INSERT,
        [(first + n, now, None, None, None, None, body, None, 0) for n, body in enumerate(map(str.encode, batch))],
    )
    db.execute(state._STORE, (1, first + size, first, now, 0, size, size, 0, 0, 0, 0, 0, 0))
    db.execute("COMMIT")
    db.pragma("synchronous", "normal")
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute(claims._FRESH, (first, first + size, size)).fetchall()
    run_many(db, claims._LEASE, [(row[0], 1, None, now + 600_000_000, 1, 1, now, now, now, None) for row in rows])
    db.execute(state._STORE, (1, first + size, first + size, now, 0, 0, 0, size, 0, 0, 0, 0, 0))
    db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")
    settled = run_many(db, verbs._ACK, [(row[0],) for row in rows], (1, -1, 1))
    run_many(db, verbs._DELETE_ACKED, [(row[0],) for row in settled])
    db.execute(state._ADD_TRAIL, (1, now, "acked", state.ENTRY.pack(first, 1, now, now) * size, None, None))
    db.execute(state._STORE, (1, first + size, first + size, now, 0, -size, 0, 0, size, 0, 0, 0, 0))
    db.execute("COMMIT")
    return [str(row[5], "utf-8") for row in rows]  # type: ignore[arg-type]  # the column is a BLOB


def _loop(db: apsw.Connection, messages: int, batch: int, step: Step) -> float:
    sent, received = bodies(messages), list[str]()
    started = time.perf_counter()
    for first in range(0, messages, batch):
        received += step(db, sent[first : first + batch])
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
