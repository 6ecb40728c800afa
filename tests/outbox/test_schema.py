"""The tables: named after the outbox, filled by their trigger whatever is inserted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.outbox.fixtures import OutboxFixture, an_event

from postroad.errors import ConfigurationError
from postroad.outbox import Outbox
from postroad.outbox.schema import SCHEMA_VERSION

UNREADABLE = [
    "{}",
    "[]",
    "null",
    '"text"',
    '{"key": [1]}',
    '{"key": {"a": 1}}',
    '{"key": {"a": ""}}',
    '{"key": {"transferId": 3}}',
    '{"key": {}}',
    '{"envelope": [], "key": null}',
    '{"envelope": {"eventId": 3, "tenantId": []}}',
    '{"envelope": {"eventId": "", "tenantId": ""}}',
]


def insert(fixture: OutboxFixture, payload: str) -> str:
    row_id = str(uuid4())
    fixture.run("INSERT INTO outbox (id, eventtype, payload) VALUES (?, 't', ?)", row_id, payload)
    return row_id


@pytest.mark.parametrize("name", ["outbox; drop", "", "Outbox", "1st", "a" * 41, 'out"box', 3, None])
def test_a_table_is_named_so_that_sql_needs_no_escaping(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox.postgres(table=name)
    with pytest.raises(ConfigurationError):
        Outbox.sqlite(table=name)

    assert refused.value.field == "table"


def test_a_schema_is_named_likewise() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox.postgres(schema="public; drop")

    assert refused.value.field == "schema"


@pytest.mark.parametrize("payload", UNREADABLE)
def test_a_row_whose_lane_cannot_be_read_has_one_of_its_own(fixture: OutboxFixture, payload: str) -> None:
    row_id = insert(fixture, payload)

    row = fixture.outbox.get(row_id)
    assert row is not None
    assert (row.lane, row.seq, row.tenant_id, row.state) == (f"row:{row_id}", 1, None, "PENDING")


def test_what_is_no_json_is_no_matter_to_the_trigger_on_sqlite(on_sqlite: OutboxFixture) -> None:
    row_id = insert(on_sqlite, "{not json")

    row = on_sqlite.outbox.get(row_id)
    assert row is not None
    assert row.lane == f"row:{row_id}"


@pytest.mark.parametrize(
    ("payload", "lane"),
    [
        ('{"key": {"b": "2", "a": "1"}}', "1/2"),
        ('{"key": {"a": "1"}}', "1"),
        ('{"key": {"transferId": "t", "a": "1"}}', "t"),
        ('{"key": {"transferId": "t", "z": 1}}', "t"),
    ],
)
def test_a_lane_is_read_from_the_key(fixture: OutboxFixture, payload: str, lane: str) -> None:
    row = fixture.outbox.get(insert(fixture, payload))

    assert row is not None
    assert row.lane == lane


def test_the_event_id_of_plain_sql_is_found_in_either_case(fixture: OutboxFixture) -> None:
    event_id = uuid4()
    insert(
        fixture, f'{{"envelope": {{"eventId": "{str(event_id).upper()}", "tenantId": "acme"}}, "key": {{"k": "v"}}}}'
    )

    row = fixture.outbox.get(event_id)
    assert row is not None
    assert (row.event_id, row.tenant_id) == (event_id, "acme")


def test_an_event_id_that_is_no_uuid_is_kept_as_text(fixture: OutboxFixture) -> None:
    insert(fixture, '{"envelope": {"eventId": "order-17"}, "key": {"k": "v"}}')

    row = fixture.outbox.get("order-17")
    assert row is not None
    assert row.event_id == "order-17"


def test_numbers_are_the_triggers_to_give(fixture: OutboxFixture) -> None:
    fixture.add()
    fixture.run("INSERT INTO outbox (id, eventtype, payload, seq) VALUES (?, 't', '{}', 99)", str(uuid4()))

    assert fixture.run("SELECT seq FROM outbox ORDER BY seq") == [(1,), (2,)]


def test_two_outboxes_share_a_database(fixture: OutboxFixture) -> None:
    other = Outbox.open(fixture.dsn, table="orders_outbox")
    other.init()
    with fixture.connection() as connection:
        event_id = other.add(connection, an_event())
        connection.commit()

    assert other.get(event_id) is not None
    assert fixture.outbox.get(event_id) is None
    other.close()


def test_a_commit_notifies_with_the_name_of_the_table(on_postgres: OutboxFixture) -> None:
    with psycopg.connect(on_postgres.dsn, autocommit=True) as listening:
        listening.execute("LISTEN postroad_outbox")

        on_postgres.add()

        told = [(notice.channel, notice.payload) for notice in listening.notifies(timeout=30, stop_after=1)]
    assert told == [("postroad_outbox", "outbox")]


@pytest.mark.parametrize("make", [Outbox.postgres, Outbox.sqlite, Outbox.open])
def test_every_way_to_make_an_outbox_names_its_options(make: Callable[..., Outbox]) -> None:
    options = inspect.signature(make).parameters

    assert {"table", "cipher", "max_bytes", "registry", "clock"} <= options.keys()
    assert (options["table"].default, options["max_bytes"].default) == ("outbox", 262_144)


def test_on_sqlite_a_schema_means_nothing(tmp_path: Path) -> None:
    outbox = Outbox.open(f"sqlite:///{tmp_path / 'app.db'}", schema="shop")

    assert outbox.init() == SCHEMA_VERSION
    outbox.close()
