"""Rows that compare recording an event with a bare insert into the seed's table, beside one business row."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from postroad.outbox import DomainEvent, Outbox

KEYS = 1_000
LONGEST_RATIO = 1.3
TYPE = "events.transfers.submitted.usdc"
PAYLOAD = {"amount": {"value": "100.00", "currency": "USD"}, "payer": {"type": "WALLET", "id": "payer-abc"}}
ORDERS = "CREATE TABLE orders (id bigserial PRIMARY KEY, transfer text NOT NULL, amount numeric NOT NULL)"
ORDER = "INSERT INTO orders (transfer, amount) VALUES (%s, 100)"
SEED_TABLE = """
CREATE TABLE outbox (
  id uuid PRIMARY KEY, eventType text NOT NULL, payload jsonb NOT NULL, state text NOT NULL DEFAULT 'PENDING',
  attempts int NOT NULL DEFAULT 0, lastError text, next_attempt timestamptz NOT NULL DEFAULT now(),
  createdAt timestamptz NOT NULL DEFAULT now(), updatedAt timestamptz NOT NULL DEFAULT now())
"""
BARE_INSERT = "INSERT INTO outbox (id, eventType, payload) VALUES (%s, %s, %s)"

Connection = psycopg.Connection[tuple[Any, ...]]
Record = Callable[[Connection, str], object]
"""Records one event about this transfer."""


def _bare(connection: Connection, transfer: str) -> object:
    event_id = str(uuid.uuid4())
    envelope = {"v": 1, "eventId": event_id, "occurredAt": datetime.now(UTC).isoformat(), "tenantId": "tnt_1"}
    body = {"envelope": {**envelope, "type": TYPE}, "key": {"transferId": transfer}, "payload": PAYLOAD}
    return connection.execute(BARE_INSERT, (event_id, TYPE, json.dumps(body)))


def _recorder(outbox: Outbox) -> Record:
    def record(connection: Connection, transfer: str) -> object:
        return outbox.add(connection, DomainEvent(TYPE, {"transferId": transfer}, PAYLOAD, tenant_id="tnt_1"))

    return record


@contextmanager
def _our_table(dsn: str) -> Iterator[Record]:
    outbox = Outbox.postgres(dsn)
    outbox.init()
    yield _recorder(outbox)
    outbox.close()


@contextmanager
def _seed_table(dsn: str) -> Iterator[Record]:
    with psycopg.connect(dsn) as connection:
        connection.execute(SEED_TABLE)
    yield _bare


def _writers(count: int, table: Callable[[str], Any]) -> Open:
    """A side whose writers each have a connection and share the transactions of a round."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn = stack.enter_context(postgres.database(stack.enter_context(postgres.shared(directory))))
            record = stack.enter_context(table(dsn))
            connections = [stack.enter_context(psycopg.connect(dsn)) for _ in range(count)]
            connections[0].execute(ORDERS)
            connections[0].commit()
            yield Opened(lambda: _round(connections, record, load.messages))

    return opened


def _round(connections: list[Connection], record: Record, transactions: int) -> float:
    """Seconds for a transaction, with all writers at work."""
    before = _count(connections[0])
    each = transactions // len(connections)
    start = threading.Barrier(len(connections) + 1)
    threads = [threading.Thread(target=_write, args=(each, record, start, own)) for own in connections]
    for thread in threads:
        thread.start()
    start.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if _count(connections[0]) - before != 2 * each * len(connections):
        raise WrongResult("not every transaction left both of its rows")
    return seconds / (each * len(connections))


def _write(transactions: int, record: Record, start: threading.Barrier, connection: Connection) -> None:
    start.wait()
    for number in range(transactions):
        transfer = f"tr_{hash((id(connection), number)) % KEYS}"
        connection.execute(ORDER, (transfer,))
        record(connection, transfer)
        connection.commit()


def _count(connection: Connection) -> int:
    found = connection.execute("SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM outbox)").fetchone()
    connection.commit()
    return int(found[0]) if found else 0


def _row(writers: int, messages: int) -> Row:
    return Row(
        name=f"outbox-add-{writers}",
        what=f"a transaction of one business row and one event, {writers} writer{'s' if writers > 1 else ''}",
        unit="seconds",
        target=1 / LONGEST_RATIO,
        ours=Side(label="postroad", open=_writers(writers, _our_table), package="postroad", needs=postgres.version),
        peer=Side(
            label="bare INSERT into the seed's table",
            open=_writers(writers, _seed_table),
            needs=postgres.version,
        ),
        loads=Loads(full=Load(messages=messages), quick=Load(messages=messages // 4), smallest=Load(messages=16)),
    )


ROWS = (_row(1, 2_000), _row(8, 8_000))
