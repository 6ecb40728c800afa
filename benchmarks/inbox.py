"""The row that compares remembering an event with a bare insert into the seed's inbox table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from benchmarks import postgres
from benchmarks.frame import Load, Loads, Open, Opened, Row, Side, WrongResult
from postroad.events import uuid7
from postroad.inbox import Inbox

_TABLE = "CREATE TABLE seeds_inbox (eventId uuid PRIMARY KEY, processedAt timestamptz NOT NULL DEFAULT now())"
_INSERT = "INSERT INTO seeds_inbox (eventId) VALUES (%s)"
_COUNT_BARE = "SELECT count(*) FROM seeds_inbox"
_COUNT_OURS = "SELECT count(*) FROM inbox WHERE consumer = 'ledger'"
Remember = Callable[["psycopg.Connection[Any]", UUID], object]


def _remembering(prepare: Callable[[psycopg.Connection[Any], str], Remember], count: bytes) -> Open:
    """A side that remembers one event in each transaction; transactions per second."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with ExitStack() as stack:
            dsn = stack.enter_context(postgres.database(stack.enter_context(postgres.shared(directory))))
            connection = stack.enter_context(psycopg.connect(dsn))
            remember = prepare(connection, dsn)
            yield Opened(lambda: _round(connection, remember, count, load.messages))

    return opened


def _round(connection: psycopg.Connection[Any], remember: Remember, count: bytes, events: int) -> float:
    event_ids = [uuid7() for _ in range(events)]
    before = _counted(connection, count)
    started = time.perf_counter()
    for event_id in event_ids:
        remember(connection, event_id)
        connection.commit()
    elapsed = time.perf_counter() - started
    if _counted(connection, count) - before != events:
        raise WrongResult("not every event was remembered")
    return events / elapsed


def _counted(connection: psycopg.Connection[Any], count: bytes) -> int:
    ((found,),) = connection.execute(count).fetchall()
    connection.commit()
    return int(found)


def _ours(_: psycopg.Connection[Any], dsn: str) -> Remember:
    inbox = Inbox.postgres(dsn)
    inbox.init()
    return lambda connection, event_id: inbox.first_time(connection, "ledger", event_id)


def _bare(connection: psycopg.Connection[Any], _: str) -> Remember:
    connection.execute(_TABLE)
    connection.commit()
    return lambda connection, event_id: connection.execute(_INSERT, (event_id,))


ROWS = [
    Row(
        name="inbox-first-time",
        what="remember one event in each transaction",
        unit="per_second",
        target=1 / 1.2,
        loads=Loads(full=Load(messages=3_000), quick=Load(messages=1_000), smallest=Load(messages=20)),
        ours=Side(
            label="postroad",
            package="postroad",
            needs=postgres.version,
            open=_remembering(_ours, _COUNT_OURS.encode()),
        ),
        peer=Side(
            label="bare insert into the seed's table",
            package="psycopg",
            needs=postgres.version,
            open=_remembering(_bare, _COUNT_BARE.encode()),
        ),
        note="at most 1.2 times the time, which is 0.83 of the rate",
    ),
]
