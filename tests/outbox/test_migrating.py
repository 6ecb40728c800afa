"""Creating and migrating the tables: as often as one likes, beside each other, over what the seed has made."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import OutboxFixture, an_event, postgres_fixture

from postroad import QueueSpec, connect
from postroad.errors import ConfigurationError, SchemaMismatch, Unavailable
from postroad.inbox import Inbox
from postroad.outbox import Outbox, OutboxDispatcher
from postroad.outbox.schema import SCHEMA_VERSION

SEED_TABLE = """
CREATE TABLE IF NOT EXISTS outbox (
  id uuid PRIMARY KEY,
  eventType text NOT NULL,
  payload jsonb NOT NULL,
  state text NOT NULL DEFAULT 'PENDING',
  attempts int NOT NULL DEFAULT 0,
  lastError text,
  next_attempt timestamptz NOT NULL DEFAULT now(),
  createdAt timestamptz NOT NULL DEFAULT now(),
  updatedAt timestamptz NOT NULL DEFAULT now()
);
"""
SEED_ROW = """
-- Insert a fake submitted.usdc event
INSERT INTO outbox (id, eventType, payload)
VALUES (
  gen_random_uuid(),
  'events.transfers.submitted.usdc',
  jsonb_build_object(
    'envelope', jsonb_build_object('v',1,'eventId', gen_random_uuid()::text, 'occurredAt', now(), 'tenantId','tnt_demo','type','events.transfers.submitted.usdc'),
    'key', jsonb_build_object('transferId','tr_test_123'),
    'payload', jsonb_build_object('amount', jsonb_build_object('value','10.00','currency','USD'))
  )
);
"""  # noqa: E501
SEED_LIKE_ON_SQLITE = """
CREATE TABLE outbox (
  id TEXT PRIMARY KEY, eventType TEXT NOT NULL, payload TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'PENDING',
  attempts INTEGER NOT NULL DEFAULT 0, lastError TEXT, next_attempt TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  createdAt TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, updatedAt TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
"""


def test_init_may_be_run_as_often_as_one_likes(fixture: OutboxFixture) -> None:
    fixture.add()

    assert [fixture.outbox.init(), fixture.outbox.init()] == [SCHEMA_VERSION] * 2
    assert fixture.count() == 1
    fixture.outbox.require_schema()


def test_many_may_run_init_at_once(postgres_dsn: str, tmp_path: Path) -> None:
    for dsn in (postgres_dsn, f"sqlite:///{tmp_path / 'app.db'}"):
        outboxes = [Outbox.open(dsn) for _ in range(4)]

        with ThreadPoolExecutor(4) as threads:
            versions = list(threads.map(Outbox.init, outboxes))

        assert versions == [SCHEMA_VERSION] * 4
        for outbox in outboxes:
            outbox.close()


def test_the_seeds_own_sql_works_before_init(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(SEED_TABLE)
        connection.execute(SEED_ROW)
        connection.execute(SEED_ROW)
        connection.execute(
            "UPDATE outbox SET state = 'SENT', attempts = 3, createdat = now() - interval '1 day'"
            " WHERE id = (SELECT id FROM outbox LIMIT 1)"
        )

    fixture = postgres_fixture(postgres_dsn)

    rows = fixture.run(
        "SELECT seq, state, attempts, tenant, lane, event_id = payload->'envelope'->>'eventId' FROM outbox"
    )
    assert sorted(rows) == [
        (1, "SENT", 3, "tnt_demo", "tr_test_123", True),
        (2, "PENDING", 0, "tnt_demo", "tr_test_123", True),
    ]
    fixture.outbox.close()


def test_the_seeds_own_sql_works_after_init(on_postgres: OutboxFixture) -> None:
    on_postgres.run(SEED_TABLE)
    on_postgres.run(SEED_ROW)

    assert on_postgres.run("SELECT seq, tenant, lane FROM outbox") == [(1, "tnt_demo", "tr_test_123")]


def test_adopted_rows_with_one_event_id_are_all_kept(postgres_dsn: str) -> None:
    payload = an_event().to_json().decode()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(SEED_TABLE)
        for _ in range(3):
            connection.execute(
                "INSERT INTO outbox (id, eventType, payload) VALUES (gen_random_uuid(), 't', %s)", [payload]
            )

    fixture = postgres_fixture(postgres_dsn)

    assert fixture.run("SELECT count(DISTINCT event_id), count(DISTINCT seq), count(*) FROM outbox") == [(3, 3, 3)]
    fixture.outbox.close()


def test_a_table_like_the_seeds_is_adopted_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    event = an_event(tenant_id="acme")
    connection = sqlite3.connect(path)
    connection.executescript(SEED_LIKE_ON_SQLITE)
    values = (str(event.event_id), event.type, event.to_json().decode())
    connection.execute("INSERT INTO outbox (id, eventType, payload) VALUES (?, ?, ?)", values)
    connection.commit()
    connection.close()

    outbox = Outbox.sqlite(path)
    outbox.init()

    row = outbox.get(event.event_id)
    assert row is not None
    assert (row.seq, row.tenant_id, row.lane, row.redrives) == (1, "acme", "tr_1", 0)
    outbox.close()


def test_the_printed_sql_does_what_init_does(postgres_dsn: str, tmp_path: Path) -> None:
    on_postgres = Outbox.postgres(postgres_dsn)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(on_postgres.init_sql().encode())
    on_sqlite = Outbox.sqlite(tmp_path / "app.db")
    other = sqlite3.connect(tmp_path / "app.db")
    other.executescript(on_sqlite.init_sql())
    other.close()

    for outbox in (on_postgres, on_sqlite):
        outbox.require_schema()
        assert outbox.init() == SCHEMA_VERSION
        assert outbox.status().pending == 0
        outbox.close()


def test_the_printed_sql_is_part_of_the_transaction_that_runs_it(postgres_dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE mine (id int)")
        connection.execute(Outbox.postgres().init_sql().encode())
        connection.rollback()
        assert connection.execute("SELECT to_regclass('mine'), to_regclass('outbox')").fetchall() == [(None, None)]
    with closing(sqlite3.connect(tmp_path / "app.db")) as file:
        file.executescript(f"BEGIN; CREATE TABLE mine (id int); {Outbox.sqlite().init_sql()} ROLLBACK;")
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_the_printed_sql_adopts_the_seeds_rows_outside_of_a_transaction_too(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(SEED_TABLE)
        connection.execute(SEED_ROW)
        connection.execute(SEED_ROW)

        # psql runs what it reads statement by statement.
        for statement in _statements(Outbox.postgres().init_sql()):
            connection.execute(statement.encode())

        assert connection.execute("SELECT seq, lane FROM outbox ORDER BY seq").fetchall() == [
            (1, "tr_test_123"),
            (2, "tr_test_123"),
        ]


def _statements(script: str) -> list[str]:
    """The statements of a script, in which functions stand between dollars."""
    found, pending = [], ""
    for part in script.split(";"):
        pending += part + ";"
        if pending.count("$$") % 2 == 0:
            found.append(pending)
            pending = ""
    return [statement for statement in found if statement.strip(" ;\n")]


def test_tables_of_an_earlier_version_are_migrated_with_their_rows(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dsn in (postgres_dsn, f"sqlite:///{tmp_path / 'app.db'}"):
        outbox = Outbox.open(dsn)
        with monkeypatch.context() as earlier:
            earlier.setattr("postroad.outbox.schema.SCHEMA_VERSION", 1)
            assert outbox.init() == 1
        fixture = OutboxFixture(outbox=outbox, dsn=dsn)
        failed = fixture.add(payload={"n": 1})
        fixture.add(payload={"n": 2})
        fixture.set(failed, state="FAILED")
        with pytest.raises(SchemaMismatch, match="of version 1"):
            outbox.require_schema()

        assert outbox.init() == SCHEMA_VERSION

        recorder = Recorder()
        dispatcher = OutboxDispatcher(outbox, recorder, metrics=CollectorRegistry())
        assert dispatcher.drain().sent == 0
        outbox.redrive([failed.event_id], by="ops", reason="repaired")
        assert dispatcher.drain().sent == 2
        assert recorder.numbers() == [1, 2]
        outbox.close()


def test_missing_tables_are_told_with_the_remedy(postgres_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "app.db").touch()
    for dsn in (postgres_dsn, f"sqlite:///{tmp_path / 'app.db'}"):
        outbox = Outbox.open(dsn)

        for question in (outbox.require_schema, outbox.status, outbox.failed, outbox.prune):
            with pytest.raises(SchemaMismatch) as refused:
                question()
            assert "postroad outbox init" in refused.value.remedy
        outbox.close()


def test_newer_tables_are_left_alone(fixture: OutboxFixture) -> None:
    fixture.run("UPDATE outbox_meta SET version = 7")

    for attempt in (fixture.outbox.init, fixture.outbox.require_schema):
        with pytest.raises(SchemaMismatch, match="version 7"):
            attempt()
    assert fixture.run("SELECT version FROM outbox_meta") == [(7,)]


def test_a_database_that_is_not_there_is_told() -> None:
    outbox = Outbox.postgres("postgresql://nobody:s3cret@127.0.0.1:1/none")

    with pytest.raises(Unavailable) as refused:
        outbox.status()

    assert "s3cret" not in str(refused.value)


def test_a_file_that_is_not_there_or_not_sqlites_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database at all" * 100)

    for name in ("missing.db", "notes.txt", ""):
        outbox = Outbox.sqlite(tmp_path / name)
        with pytest.raises(ConfigurationError) as refused:
            outbox.status()
        assert refused.value.remedy
        outbox.close()
    assert not (tmp_path / "missing.db").exists()


def test_in_a_file_that_is_not_there_the_tables_are_missing(tmp_path: Path) -> None:
    outbox, inbox = Outbox.sqlite(tmp_path / "missing.db"), Inbox.sqlite(tmp_path / "missing.db")

    for question, remedy in ((outbox.require_schema, "postroad outbox init"), (inbox.check, "postroad inbox init")):
        with pytest.raises(SchemaMismatch) as refused:
            question()
        assert remedy in refused.value.remedy
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("dsn", ["", "mysql://x", "postgresql", "sqlite://", "sqlite:///", "memory://", None, 3])
def test_a_dsn_that_names_no_database_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox.open(dsn)

    assert refused.value.field == "dsn"


def test_a_broken_dsn_does_not_show_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox.postgres("postgresql://user:s3cret@[::1/x")

    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_without_a_dsn_there_is_nothing_to_ask() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Outbox.postgres().get(UUID(int=1))

    assert refused.value.field == "dsn"


def test_dead_rows_are_vacuumed_early(on_postgres: OutboxFixture) -> None:
    options = on_postgres.run("SELECT unnest(reloptions) FROM pg_class WHERE oid = 'outbox'::regclass")

    settings = dict(option.split("=") for (option,) in options)
    assert float(settings["autovacuum_vacuum_scale_factor"]) <= 0.1
    assert int(settings["autovacuum_vacuum_threshold"]) <= 50_000


def test_a_server_that_was_restarted_is_found_again(on_postgres: OutboxFixture) -> None:
    on_postgres.outbox.status()
    on_postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postroad'")

    assert on_postgres.outbox.status().pending == 0


def test_adopted_rows_whose_ids_differ_only_in_spelling_are_all_kept(postgres_dsn: str, tmp_path: Path) -> None:
    event = an_event()
    spellings = [str(event.event_id), str(event.event_id).upper(), event.event_id.hex, "x" * 300, "x" * 300]
    bodies = [event.to_json().decode().replace(str(event.event_id), spelled) for spelled in spellings]
    path = tmp_path / "app.db"
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(SEED_TABLE)
        for body in bodies:
            insert = "INSERT INTO outbox (id, eventType, payload) VALUES (gen_random_uuid(), 't', %s)"
            connection.execute(insert, [body])
    with closing(sqlite3.connect(path)) as file:
        file.executescript(SEED_LIKE_ON_SQLITE)
        file.executemany("INSERT INTO outbox (id, eventType, payload) VALUES (?, 't', ?)", enumerate(bodies))
        file.commit()

    for outbox in (Outbox.postgres(postgres_dsn), Outbox.sqlite(path)):
        outbox.init()

        assert outbox.status().pending == len(bodies)
        assert outbox.get(event.event_id) is not None
        outbox.close()


def test_a_table_of_another_program_is_left_alone(postgres_dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with psycopg.connect(postgres_dsn) as connection, closing(sqlite3.connect(path)) as file:
        for each in (connection, file):
            each.execute("CREATE TABLE outbox (id int PRIMARY KEY, topic text, payload text)")
            each.commit()

    for outbox in (Outbox.postgres(postgres_dsn), Outbox.sqlite(path)):
        with pytest.raises(ConfigurationError, match="no column attempts, createdat") as refused:
            outbox.init()

        assert refused.value.field == "table"
        outbox.close()
    with psycopg.connect(postgres_dsn) as connection, closing(sqlite3.connect(path)) as file:
        for each in (connection, file):
            assert each.execute("INSERT INTO outbox (id, topic, payload) VALUES (1, 'a', 'b') RETURNING *").fetchall()


def test_the_file_of_the_embedded_engine_is_no_place_for_an_outbox(tmp_path: Path) -> None:
    path = tmp_path / "postroad.db"
    with connect(f"sqlite:///{path}") as backend:
        backend.create_queue(QueueSpec("orders"))
        with pytest.raises(ConfigurationError, match="embedded engine"):
            Outbox.sqlite(path).init()

    with pytest.raises(ConfigurationError, match="embedded engine"):
        Outbox.sqlite(path).init()


def test_times_that_plain_sql_writes_in_another_form_are_kept_in_their_order(on_sqlite: OutboxFixture) -> None:
    insert = "INSERT INTO outbox (id, eventtype, payload, next_attempt) VALUES (?, 't', '{}', datetime('now', ?))"
    on_sqlite.run(insert, "later", "+1 hour")
    on_sqlite.run(insert, "now", "-1 second")
    on_sqlite.run("UPDATE outbox SET next_attempt = datetime('now', '+2 hours') WHERE id = 'now'")
    on_sqlite.run(insert, "never", "+0 days")
    on_sqlite.run("UPDATE outbox SET next_attempt = 'infinity' WHERE id = 'never'")

    found = on_sqlite.run(
        "SELECT id FROM outbox WHERE next_attempt > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') ORDER BY id"
    )

    assert [name for (name,) in found] == ["later", "never", "now"]
    assert on_sqlite.run("SELECT count(*) FROM outbox WHERE next_attempt LIKE '%T%.___Z'") == [(2,)]


def test_a_schema_that_is_not_there_is_told(postgres_dsn: str) -> None:
    for made in (Outbox.postgres(postgres_dsn, schema="shop"), Inbox.postgres(postgres_dsn, schema="shop")):
        with pytest.raises(ConfigurationError, match=r'schema: .*"shop"') as refused:
            made.init()

        assert refused.value.field == "schema"
        made.close()
