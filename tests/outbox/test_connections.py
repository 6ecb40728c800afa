"""Every kind of connection that callers bring: theirs is the transaction, and one that commits by itself is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import args_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.outbox.fixtures import OutboxFixture, an_event

from postroad.errors import DuplicateEvent, InvalidMessage, NotInTransaction, SchemaMismatch
from postroad.outbox import Outbox

ALIAS = "outbox"


def sqlalchemy_url(fixture: OutboxFixture, *, asynchronous: bool = False) -> str:
    if fixture.on_postgres:
        return fixture.dsn.replace("postgresql://", "postgresql+psycopg://")
    return fixture.dsn.replace("sqlite://", "sqlite+aiosqlite://") if asynchronous else fixture.dsn


@pytest.fixture
def engine(fixture: OutboxFixture) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(fixture), poolclass=sqlalchemy.NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def django_connection(fixture: OutboxFixture) -> Iterator[Any]:
    import django
    from django.conf import settings
    from django.db import ConnectionHandler, connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    if fixture.on_postgres:
        parts = psycopg.conninfo.conninfo_to_dict(fixture.dsn)
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts.get("user", "")}
        database |= {
            "HOST": parts.get("host", ""),
            "PORT": parts.get("port", ""),
            "PASSWORD": parts.get("password", ""),
        }
    else:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": fixture.dsn.removeprefix("sqlite:///")}
    connections[ALIAS] = ConnectionHandler({"default": {}, ALIAS: database})[ALIAS]
    yield connections[ALIAS]
    connections[ALIAS].close()
    del connections[ALIAS]


def test_a_connection_of_sqlalchemy_is_spoken_to_in_its_transaction(
    fixture: OutboxFixture, engine: sqlalchemy.Engine
) -> None:
    event = an_event()
    with engine.begin() as connection:
        fixture.outbox.add(connection, event)
        with pytest.raises(DuplicateEvent):
            fixture.outbox.add(connection, event)
        fixture.outbox.add_many(connection, [an_event(), an_event()])
    with engine.connect() as connection:
        fixture.outbox.add(connection, an_event())
        connection.rollback()

    assert fixture.count() == 3


def test_a_session_of_sqlalchemy_is_spoken_to_in_its_transaction(
    fixture: OutboxFixture, engine: sqlalchemy.Engine
) -> None:
    with Session(engine) as session:
        session.execute(sqlalchemy.text("CREATE TABLE orders (id int)"))
        session.commit()
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        fixture.outbox.add(session, an_event())
        session.commit()
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (2)"))
        fixture.outbox.add(session, an_event())
        session.rollback()

    assert (fixture.count(), fixture.run("SELECT id FROM orders")) == (1, [(1,)])


def test_sqlalchemy_in_autocommit_is_refused(fixture: OutboxFixture, engine: sqlalchemy.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(NotInTransaction):
            fixture.outbox.add(connection, an_event())

    assert fixture.count() == 0


def test_the_connection_of_django_is_spoken_to_within_atomic(fixture: OutboxFixture, django_connection: Any) -> None:
    from django.db.transaction import atomic

    with atomic(using=ALIAS):
        fixture.outbox.add(django_connection, an_event())
        fixture.outbox.add_many(django_connection, [an_event(), an_event()])
    with pytest.raises(ZeroDivisionError), atomic(using=ALIAS):
        fixture.outbox.add(django_connection, an_event())
        raise ZeroDivisionError

    assert fixture.count() == 3


def test_the_connection_of_django_outside_atomic_is_refused(fixture: OutboxFixture, django_connection: Any) -> None:
    with pytest.raises(NotInTransaction):
        fixture.outbox.add(django_connection, an_event())

    assert fixture.count() == 0


def test_psycopg_in_autocommit_is_refused_outside_a_transaction_block(on_postgres: OutboxFixture) -> None:
    with psycopg.connect(on_postgres.dsn, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            on_postgres.outbox.add(connection, an_event())
        with pytest.raises(NotInTransaction):
            on_postgres.outbox.add_many(connection, [an_event()])
        assert on_postgres.count() == 0
        with connection.transaction():
            on_postgres.outbox.add(connection, an_event())

    assert on_postgres.count() == 1


def test_a_pipeline_of_psycopg_learns_at_once_what_became_of_its_events(on_postgres: OutboxFixture) -> None:
    event = an_event()

    with psycopg.connect(on_postgres.dsn) as connection, connection.pipeline():
        on_postgres.outbox.add(connection, event)
        on_postgres.outbox.add_many(connection, [an_event(), an_event()])
        with pytest.raises(DuplicateEvent):
            on_postgres.outbox.add(connection, event)

    assert on_postgres.count() == 3


def test_an_error_in_a_pipeline_of_psycopg_is_raised_where_it_happens(on_postgres: OutboxFixture) -> None:
    with psycopg.connect(on_postgres.dsn) as connection, connection.pipeline():
        on_postgres.outbox.add(connection, an_event())
        with pytest.raises(SchemaMismatch, match="the outbox are missing"):
            Outbox.postgres(table="elsewhere").add(connection, an_event())
        with pytest.raises(psycopg.errors.PipelineAborted):
            on_postgres.outbox.add(connection, an_event())
        connection.rollback()
        on_postgres.outbox.add(connection, an_event())

    assert on_postgres.count() == 1


def test_psycopg_counts_the_row_of_an_event_and_returns_none(on_postgres: OutboxFixture) -> None:
    statements: list[str] = []

    class Recorded(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            statements.append(str(query))
            return super().execute(query, *args, **options)

    event = an_event()
    with psycopg.connect(on_postgres.dsn, cursor_factory=Recorded) as connection:
        on_postgres.outbox.add(connection, event)
        with pytest.raises(DuplicateEvent):
            on_postgres.outbox.add(connection, event)

    assert len(statements) == 2
    assert not any("RETURNING" in statement for statement in statements)


def test_sqlite3_without_a_begin_is_refused(on_sqlite: OutboxFixture) -> None:
    connection = sqlite3.connect(on_sqlite.dsn.removeprefix("sqlite:///"), isolation_level=None)
    with pytest.raises(NotInTransaction):
        on_sqlite.outbox.add(connection, an_event())
    assert on_sqlite.count() == 0

    connection.execute("BEGIN")
    on_sqlite.outbox.add(connection, an_event())
    connection.execute("COMMIT")
    connection.close()

    assert on_sqlite.count() == 1


@pytest.mark.parametrize("connection", [None, "dsn", object(), 3])
def test_what_is_no_connection_is_refused_by_naming_the_accepted_kinds(
    fixture: OutboxFixture, connection: object
) -> None:
    with pytest.raises(TypeError, match=r"psycopg.*SQLAlchemy.*Django.*sqlite3"):
        fixture.outbox.add(connection, an_event())


def test_a_connection_to_another_database_is_refused(on_postgres: OutboxFixture, on_sqlite: OutboxFixture) -> None:
    with on_sqlite.connection() as connection, pytest.raises(TypeError, match=r"sqlite.*postgresql"):
        on_postgres.outbox.add(connection, an_event())


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        await work()

    asyncio.run(all_of_it())


def test_an_async_connection_of_psycopg_is_spoken_to_in_its_transaction(on_postgres: OutboxFixture) -> None:
    async def work() -> None:
        event = an_event()
        async with await psycopg.AsyncConnection.connect(on_postgres.dsn) as connection:
            assert await on_postgres.outbox.add_async(connection, event) == event.event_id
            with pytest.raises(DuplicateEvent):
                await on_postgres.outbox.add_async(connection, event)
            with pytest.raises(InvalidMessage):
                await on_postgres.outbox.add_async(connection, an_event(), tenant_id="a:b")
            await connection.commit()
            await on_postgres.outbox.add_async(connection, an_event())
            await connection.rollback()
        async with await psycopg.AsyncConnection.connect(on_postgres.dsn, autocommit=True) as connection:
            with pytest.raises(NotInTransaction):
                await on_postgres.outbox.add_async(connection, an_event())
            async with connection.transaction():
                await on_postgres.outbox.add_async(connection, an_event())

    run(work)

    assert on_postgres.count() == 2


def test_rows_of_another_shape_are_no_obstacle(on_postgres: OutboxFixture) -> None:
    async def work() -> None:
        shaped = args_row(_nothing)
        async with await psycopg.AsyncConnection.connect(on_postgres.dsn, row_factory=shaped) as connection:
            await on_postgres.outbox.add_async(connection, an_event())

    with psycopg.connect(on_postgres.dsn, row_factory=args_row(_nothing)) as connection:
        on_postgres.outbox.add(connection, an_event())
    run(work)

    assert on_postgres.count() == 2


def _nothing(*_: object) -> None:
    raise AssertionError("this row is not the application's")


def test_async_connections_and_sessions_of_sqlalchemy_are_spoken_to_in_their_transaction(
    fixture: OutboxFixture,
) -> None:
    async def work() -> None:
        engine = create_async_engine(sqlalchemy_url(fixture, asynchronous=True), poolclass=sqlalchemy.NullPool)
        event = an_event()
        async with engine.begin() as connection:
            await fixture.outbox.add_async(connection, event)
            with pytest.raises(DuplicateEvent):
                await fixture.outbox.add_async(connection, event)
        async with AsyncSession(engine) as session:
            await fixture.outbox.add_async(session, an_event(), key="k", tenant_id="acme")
            await session.commit()
            await fixture.outbox.add_async(session, an_event())
            await session.rollback()
        await engine.dispose()

    run(work)

    assert fixture.count() == 2


def test_what_is_no_async_connection_is_refused(fixture: OutboxFixture) -> None:
    async def work() -> None:
        with fixture.connection() as connection, pytest.raises(TypeError, match="AsyncConnection"):
            await fixture.outbox.add_async(connection, an_event())

    run(work)


def test_an_outbox_closes_its_connections_at_the_end_of_a_with_block(fixture: OutboxFixture) -> None:
    event = fixture.add()

    with Outbox.open(fixture.dsn) as outbox:
        found = outbox.get(event.event_id)
        with outbox.database.reading() as session:
            connection = session.connection

    assert found is not None
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        connection.execute("SELECT 1")
