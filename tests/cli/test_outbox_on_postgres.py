"""`postroad outbox run` on PostgreSQL, as a process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from tests.cli.terminal import PROGRAM
from tests.postgres import postgres, postgres_dsn
from tests.waiting import eventually

from postroad.outbox import DomainEvent, Outbox

__all__ = ["postgres", "postgres_dsn"]

# A connection that listens asks for quiet after it was woken.
LISTENING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND (query LIKE 'LISTEN %' OR query LIKE '%setval%wake%')
"""


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "listening"), [((), 1), (("--no-listen",), 0)])
def test_a_dispatcher_listens_unless_it_is_told_to_poll_only(
    flags: tuple[str, ...], listening: int, postgres_dsn: str
) -> None:
    with closing(Outbox.open(postgres_dsn)) as outbox, psycopg.connect(postgres_dsn) as connection:
        outbox.init()
        event_id = outbox.add(connection, DomainEvent("transfers.submitted", {"transferId": "tr_1"}, {}))
        connection.commit()

        with _dispatcher(postgres_dsn, *flags):
            eventually(lambda: (row := outbox.get(event_id)) is not None and row.state == "SENT")
            found = connection.execute(LISTENING).fetchone()

    assert found == (listening,)


@contextmanager
def _dispatcher(dsn: str, *flags: str) -> Iterator[None]:
    arguments = (
        "outbox",
        "run",
        "--topic",
        "events.fifo",
        "--create-topic",
        "--url",
        "memory://",
        "--dsn",
        dsn,
        "--poll",
        "0.1",
        *flags,
    )
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
    )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
