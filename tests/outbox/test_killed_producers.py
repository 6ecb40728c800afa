"""A producer that dies leaves its data and its event, or neither."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.outbox.fixtures import OutboxFixture

PRODUCER = """
import os, signal, sys
from postroad.outbox import DomainEvent, Outbox

dsn, moment = sys.argv[1:]
if dsn.startswith("sqlite:///"):
    import sqlite3
    connection = sqlite3.connect(dsn.removeprefix("sqlite:///"))
else:
    import psycopg
    connection = psycopg.connect(dsn)
connection.execute("INSERT INTO orders VALUES (1)")
Outbox.open(dsn).add(connection, DomainEvent("orders.placed", {"order": "1"}, {}))
if moment == "after":
    connection.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("moment", "left"), [("inside add", 0), ("before", 0), ("after", 1)])
def test_of_data_and_event_a_killed_producer_leaves_both_or_neither(
    fixture: OutboxFixture, moment: str, left: int
) -> None:
    fixture.run("CREATE TABLE orders (id int)")
    failpoints = {"POSTROAD_FAILPOINTS": "outbox.add.after_insert=kill9"} if moment == "inside add" else {}
    command = [sys.executable, "-c", PRODUCER, fixture.dsn, moment]

    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **failpoints})

    assert done.returncode == -9, done.stderr
    assert (len(fixture.run("SELECT id FROM orders")), fixture.count()) == (left, left)
