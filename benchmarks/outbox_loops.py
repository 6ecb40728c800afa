"""Loops that people write by hand: the seed's mock, and the batched one that keeps no order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import postgres
from benchmarks.frame import Load, Open, Opened
from benchmarks.outbox_add import SEED_TABLE
from benchmarks.outbox_load import Taker, empty, fill
from postroad import OutgoingMessage

BATCH, CALL, THREADS = 50, 10, 10
SELECT = """
SELECT id, payload FROM outbox WHERE state='PENDING' AND next_attempt <= now()
ORDER BY createdAt FOR UPDATE SKIP LOCKED LIMIT 50
"""
SEND_ONE = "UPDATE outbox SET state='SENT', attempts=attempts+1, updatedAt=now() WHERE id=%s"
SEND_ALL = "UPDATE outbox SET state='SENT', attempts=attempts+1, updatedAt=now() WHERE id = ANY(%s)"
INDEX = "CREATE INDEX ON outbox (createdAt) WHERE state = 'PENDING'"
SEED_SHARE = 20
"""The seed's loop publishes one in so many of its rows: its pace is the same all along."""

Connection = psycopg.Connection[tuple[Any, ...]]
Loop = Callable[[Connection, Taker, int], None]


def seeds_loop(connection: Connection, taker: Taker, rows: int) -> None:
    """The seed's dispatcher without its sleep: one call and one update for each row, all in one transaction."""
    while len(taker.taken) < rows:
        with connection.transaction():
            for row_id, payload in connection.execute(SELECT).fetchall():
                taker.publish([_message(payload)])
                connection.execute(SEND_ONE, (row_id,))


def bare_loop(connection: Connection, taker: Taker, rows: int) -> None:
    """Select 50, publish batches of 10 on 10 threads, one update."""
    with ThreadPoolExecutor(THREADS) as pool:
        while len(taker.taken) < rows:
            with connection.transaction():
                found = connection.execute(SELECT).fetchall()
                messages = [_message(payload) for _, payload in found]
                list(pool.map(taker.publish, [messages[at : at + CALL] for at in range(0, len(messages), CALL)]))
                connection.execute(SEND_ALL, ([row_id for row_id, _ in found],))


def looping(loop: Loop, *, seconds: float, share: int = 1, index: bool = True) -> Open:
    """A side that empties the seed's table with the loop; rows per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn = stack.enter_context(postgres.database(stack.enter_context(postgres.shared(directory))))
            connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            connection.execute(SEED_TABLE)
            if index:
                connection.execute(INDEX)
            yield Opened(lambda: _round(loop, connection, dsn, Taker(seconds), load.messages, load.messages // share))

    return opened


def _round(loop: Loop, connection: Connection, dsn: str, taker: Taker, rows: int, wanted: int) -> float:
    empty(dsn)
    fill(dsn, rows)
    started = time.perf_counter()
    loop(connection, taker, wanted)
    elapsed = time.perf_counter() - started
    taker.check(rows=None, ordered=False)
    return len(taker.taken) / elapsed


def _message(payload: Any) -> OutgoingMessage:
    group, dedup_id = payload["key"]["transferId"], payload["envelope"]["eventId"]
    return OutgoingMessage(json.dumps(payload), group=group, dedup_id=dedup_id)
