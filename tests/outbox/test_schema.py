from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from postroad.errors import ConfigurationError
from postroad.outbox.schema import Names, postgres, sqlite

UNREADABLE = ["{}", "[]", "null", '{"key": [1]}', '{"key": {"a": 1}}', '{"key": {"transferId": 3}}', '{"key": {}}']
READABLE = [
    ('{"key": {"b": "2", "a": "1"}}', "1/2"),
    ('{"key": {"a": "1"}}', "1"),
    ('{"key": {"transferId": "t", "a": "1"}}', "t"),
    ('{"key": {"transferId": "t", "z": 1}}', "t"),
]


@pytest.fixture
def on_postgres(postgres_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(Names().fill(postgres.STEPS[0]).encode())
        connection.commit()
        yield connection


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "app.db")
    names = Names(schema=None)
    before, columns, after = sqlite.STEPS[0]
    connection.executescript(names.fill(";".join((before, *columns.values(), after))))
    yield connection
    connection.close()


@pytest.mark.parametrize("name", ["outbox; drop", "", "Outbox", "1st", "a" * 41, 'out"box', 3])
def test_a_table_is_named_as_sql_needs_no_escaping(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Names(table=name)

    assert refused.value.field == "table"


@pytest.mark.parametrize("payload", UNREADABLE)
def test_a_row_whose_lane_cannot_be_read_has_one_of_its_own(
    on_postgres: psycopg.Connection, on_sqlite: sqlite3.Connection, payload: str
) -> None:
    on_postgres.execute("INSERT INTO outbox (id, eventtype, payload) VALUES (gen_random_uuid(), 't', %s)", [payload])
    on_sqlite.execute("INSERT INTO outbox (id, eventtype, payload) VALUES ('some-id', 't', ?)", [payload])

    row = on_postgres.execute("SELECT event_id = id::text, lane = 'row:' || id, seq, tenant FROM outbox").fetchone()
    assert row == (True, True, 1, None)
    assert on_sqlite.execute("SELECT event_id, lane, seq, tenant FROM outbox").fetchone() == (
        "some-id",
        "row:some-id",
        1,
        None,
    )


@pytest.mark.parametrize(("payload", "lane"), READABLE)
def test_a_lane_is_read_from_the_key(
    on_postgres: psycopg.Connection, on_sqlite: sqlite3.Connection, payload: str, lane: str
) -> None:
    on_postgres.execute("INSERT INTO outbox (id, eventtype, payload) VALUES (gen_random_uuid(), 't', %s)", [payload])
    on_sqlite.execute("INSERT INTO outbox (id, eventtype, payload) VALUES ('some-id', 't', ?)", [payload])

    assert on_postgres.execute("SELECT lane FROM outbox").fetchone() == (lane,)
    assert on_sqlite.execute("SELECT lane FROM outbox").fetchone() == (lane,)


def test_a_commit_notifies(postgres_dsn: str, on_postgres: psycopg.Connection) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as listening:
        listening.execute("LISTEN postroad_outbox")

        on_postgres.execute("INSERT INTO outbox (id, eventtype, payload) VALUES (gen_random_uuid(), 't', '{}')")
        on_postgres.commit()

        told = [(notice.channel, notice.payload) for notice in listening.notifies(timeout=30, stop_after=1)]
    assert told == [("postroad_outbox", "outbox")]
