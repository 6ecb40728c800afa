"""Connections of SQLAlchemy and Django take part as those of the drivers do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar
from uuid import UUID

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db.transaction import atomic
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from tests.inbox.fixtures import InboxFixture, inbox_fixture

from postroad.connections.database import in_transaction, is_deadlock, lacks_tables, marked
from postroad.errors import ConfigurationError, NotInTransaction, SchemaMismatch
from postroad.inbox import Inbox, insert_once

ALIAS = "inbox"
EVENT = UUID("0190b5b8-0000-7000-8000-000000000001")


@pytest.fixture
def engine(fixture: InboxFixture) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(fixture.dsn.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


@pytest.fixture
def wrapper(fixture: InboxFixture) -> Iterator[Any]:
    """Django's connection to the same database."""
    if not django_settings.configured:
        django_settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    from django.db import connections
    from django.db.utils import ConnectionHandler

    connections[ALIAS] = ConnectionHandler({"default": {}, ALIAS: _django_database(fixture.dsn)})[ALIAS]
    yield connections[ALIAS]
    connections[ALIAS].close()
    del connections[ALIAS]


def _django_database(dsn: str) -> dict[str, Any]:
    if dsn.startswith("sqlite:///"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": dsn.removeprefix("sqlite:///")}
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(dsn)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts.get("port", ""),
        "PASSWORD": parts.get("password", ""),
    }


def test_sqlalchemy_commits_the_row_with_its_own_work(fixture: InboxFixture, engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        assert fixture.inbox.first_time(connection, "ledger", EVENT)
        connection.rollback()
        assert fixture.inbox.first_time(connection, "ledger", EVENT)
        connection.commit()
    with engine.begin() as connection:
        assert not fixture.inbox.first_time(connection, "ledger", EVENT)


@pytest.mark.parametrize("fixture", ["postgres"], indirect=True)
def test_sqlalchemy_on_psycopg2_takes_part(fixture: InboxFixture) -> None:
    engine = sqlalchemy.create_engine(fixture.dsn.replace("postgresql://", "postgresql+psycopg2://"))
    with engine.begin() as connection:
        assert fixture.inbox.first_time(connection, "ledger", EVENT)
    with engine.begin() as connection:
        assert not fixture.inbox.first_time(connection, "ledger", EVENT)
    engine.dispose()


@pytest.mark.parametrize("fixture", ["postgres"], indirect=True)
def test_sqlalchemy_on_asyncpg_takes_part(fixture: InboxFixture) -> None:
    fixture.rows("CREATE TABLE transfers (id text PRIMARY KEY, amount int)")

    def handle(connection: sqlalchemy.Connection) -> tuple[bool, bool]:
        first = fixture.inbox.first_time(connection, "ledger", EVENT, fingerprint="f")
        return first, insert_once(connection, "transfers", key={"id": "tr_1"}, values={"amount": 5})

    async def work() -> list[tuple[bool, bool]]:
        engine = create_async_engine(fixture.dsn.replace("postgresql://", "postgresql+asyncpg://"))
        outcomes = []
        for _ in range(2):
            async with engine.begin() as connection:
                outcomes.append(await connection.run_sync(handle))
        await engine.dispose()
        return outcomes

    assert asyncio.run(work()) == [(True, True), (False, False)]
    assert fixture.rows("SELECT * FROM transfers") == [("tr_1", 5)]


def test_a_session_of_sqlalchemy_takes_part(fixture: InboxFixture, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        assert fixture.inbox.first_time(session, "ledger", EVENT)
        with session.begin_nested() as savepoint:
            assert fixture.inbox.first_time(session, "other", EVENT)
            savepoint.rollback()
        assert fixture.inbox.first_time(session, "other", EVENT)
        session.commit()

    assert len(fixture.rows("SELECT * FROM inbox")) == 2


def test_sqlalchemy_in_autocommit_is_refused_and_stays_usable(fixture: InboxFixture, engine: sqlalchemy.Engine) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(NotInTransaction):
            fixture.inbox.first_time(connection, "ledger", EVENT)
        with connection.begin():
            connection.execute(sqlalchemy.text("SELECT 1"))

    assert fixture.rows("SELECT * FROM inbox") == []


def test_a_listener_that_sends_begin_itself_is_asked_after_it_did(
    fixture: InboxFixture, engine: sqlalchemy.Engine
) -> None:
    if engine.dialect.name != "sqlite":
        pytest.skip("only the driver of SQLite needs such listeners")
    sqlalchemy_event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    sqlalchemy_event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))

    with engine.connect() as connection:
        assert fixture.inbox.first_time(connection, "ledger", EVENT)
        connection.rollback()

    assert fixture.rows("SELECT * FROM inbox") == []


def test_django_inside_atomic_takes_part(fixture: InboxFixture, wrapper: Any) -> None:
    with pytest.raises(ZeroDivisionError), atomic(using=ALIAS):
        assert fixture.inbox.first_time(wrapper, "ledger", EVENT, fingerprint="a")
        raise ZeroDivisionError
    with atomic(using=ALIAS):
        assert fixture.inbox.first_time(wrapper, "ledger", EVENT, fingerprint="a")
        assert not fixture.inbox.first_time(wrapper, "ledger", EVENT, fingerprint="a")

    assert len(fixture.rows("SELECT * FROM inbox")) == 1


def test_django_outside_atomic_is_refused(fixture: InboxFixture, wrapper: Any) -> None:
    with pytest.raises(NotInTransaction):
        fixture.inbox.first_time(wrapper, "ledger", EVENT)

    assert fixture.rows("SELECT * FROM inbox") == []


def test_django_takes_statements_with_percent_signs(fixture: InboxFixture, wrapper: Any) -> None:
    wrapper.set_autocommit(False)
    caller = in_transaction(wrapper)

    found = caller.rows(marked("SELECT '100%', CAST(? AS text)", caller), ("it",))

    assert found == [("100%", "it")]
    wrapper.rollback()


class Recorded(psycopg.Cursor[Any]):
    """A cursor of psycopg that keeps the statements it was given."""

    statements: ClassVar[list[str]] = []

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        self.statements.append(str(query))
        return super().execute(query, *args, **options)


@pytest.fixture
def recorded(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database with an inbox and a ledger; its statements are in `Recorded.statements`."""
    Recorded.statements.clear()
    with inbox_fixture(postgres_dsn), psycopg.connect(postgres_dsn, cursor_factory=Recorded) as connection:
        yield connection


def test_psycopg_counts_the_row_and_returns_none(recorded: psycopg.Connection[Any]) -> None:
    inbox = Inbox.postgres()

    found = [inbox.first_time(recorded, "c", EVENT) for _ in range(2)]
    found += [insert_once(recorded, "ledger", key={"account": "a"}, values={"times": 1}) for _ in range(2)]

    assert found == [True, False, True, False]
    assert len(Recorded.statements) == 4
    assert not any("RETURNING" in statement for statement in Recorded.statements)


def test_a_pipeline_of_psycopg_learns_at_once_whether_an_event_is_new(
    recorded: psycopg.Connection[Any], postgres_dsn: str
) -> None:
    inbox, other = Inbox.postgres(), UUID(int=EVENT.int + 1)
    with psycopg.connect(postgres_dsn) as elsewhere:
        assert inbox.first_time(elsewhere, "c", other)

    with recorded.pipeline():
        queued = recorded.execute("SELECT 7")
        found = [inbox.first_time(recorded, "c", each) for each in (EVENT, EVENT, other)]
        found += [insert_once(recorded, "ledger", key={"account": "a"}, values={"times": 1}) for _ in range(2)]
        assert queued.fetchall() == [(7,)]
    found.append(inbox.first_time(recorded, "c", EVENT))
    recorded.rollback()

    assert found == [True, False, False, True, False, False]
    assert inbox.first_time(recorded, "c", EVENT)


def test_an_error_in_a_pipeline_of_psycopg_is_raised_where_it_happens(recorded: psycopg.Connection[Any]) -> None:
    inbox = Inbox.postgres()

    with recorded.pipeline():
        assert inbox.first_time(recorded, "c", EVENT)
        with pytest.raises(SchemaMismatch, match="the inbox are missing"):
            Inbox.postgres(table="elsewhere").first_time(recorded, "c", EVENT)
        with pytest.raises(psycopg.errors.PipelineAborted):
            inbox.first_time(recorded, "c", EVENT)
        recorded.rollback()
        assert inbox.first_time(recorded, "c", EVENT)
        recorded.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.Error):
            inbox.first_time(recorded, "c", UUID(int=1))
        # The driver may say only now that it did not run what stood behind the error.
        with suppress(psycopg.errors.PipelineAborted):
            recorded.rollback()
    recorded.rollback()

    assert inbox.first_time(recorded, "c", EVENT)


def test_a_row_is_inserted_once_by_its_key(fixture: InboxFixture, engine: sqlalchemy.Engine) -> None:
    row: dict[str, Any] = {"key": {"account": "a"}, "values": {"times": 7}}
    with fixture.inbox.transaction() as connection:
        assert insert_once(connection, "ledger", **row)
    with engine.begin() as connection:
        assert not insert_once(connection, "ledger", key={"account": "a"}, values={"times": 8})

    assert fixture.times("a") == 7


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        ("ledger; --", {"account": "a"}, {}),
        ("ledger", {"Account": "a"}, {}),
        ("ledger", {}, {"times": 1}),
        ("ledger", {"account": "a"}, {"times) --": 1}),
    ],
)
def test_a_name_that_is_none_is_refused_before_anything_is_written(
    fixture: InboxFixture, table: str, key: dict[str, Any], values: dict[str, Any]
) -> None:
    with fixture.inbox.transaction() as connection, pytest.raises(ConfigurationError):
        insert_once(connection, table, key=key, values=values)

    assert fixture.rows("SELECT * FROM ledger") == []


@pytest.mark.timeout(30)
def test_an_error_in_a_circle_of_causes_is_looked_at_once() -> None:
    error, cause = ValueError("wrong"), KeyError("missing")
    error.__cause__, cause.__cause__ = cause, error

    assert not lacks_tables(error)
    assert not is_deadlock(error)
