"""Every driver that applications use: it records in the caller's transaction, or is refused by naming those that do."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any, Literal
from uuid import UUID

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.outbox.test_connections import ALIAS, django_connection

from postroad.errors import DuplicateEvent, InvalidMessage, NotInTransaction, SchemaMismatch
from postroad.outbox import DomainEvent

__all__ = ["django_connection"]

End = Literal["commit", "rollback", "autocommit"]
Outcome = UUID | Exception
Way = Callable[[OutboxFixture, Sequence[DomainEvent], End], list[Outcome]]


def added(fixture: OutboxFixture, connection: object, events: Sequence[DomainEvent]) -> list[Outcome]:
    """What `add` says to each of the events."""
    outcomes: list[Outcome] = []
    for event in events:
        try:
            outcomes.append(fixture.outbox.add(connection, event))
        except (InvalidMessage, DuplicateEvent, NotInTransaction, SchemaMismatch, TypeError) as error:
            outcomes.append(error)
    return outcomes


async def added_async(fixture: OutboxFixture, connection: object, events: Sequence[DomainEvent]) -> list[Outcome]:
    """What `add_async` says to each of the events."""
    outcomes: list[Outcome] = []
    for event in events:
        try:
            outcomes.append(await fixture.outbox.add_async(connection, event))
        except (InvalidMessage, DuplicateEvent, NotInTransaction, SchemaMismatch, TypeError) as error:
            outcomes.append(error)
    return outcomes


def on_psycopg(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    with psycopg.connect(fixture.dsn, autocommit=end == "autocommit") as connection:
        outcomes = added(fixture, connection, events)
        if end == "rollback":
            connection.rollback()
    return outcomes


def on_psycopg2(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    with closing(psycopg2.connect(fixture.dsn)) as connection:
        return added(fixture, connection, events)


def on_sqlite3(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    level: Literal["DEFERRED"] | None = None if end == "autocommit" else "DEFERRED"
    with closing(sqlite3.connect(fixture.dsn.removeprefix("sqlite:///"), isolation_level=level)) as connection:
        outcomes = added(fixture, connection, events)
        if end == "commit":
            connection.commit()
    return outcomes


def on_django(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    from django.db import connections
    from django.db.transaction import atomic, set_rollback

    if end == "autocommit":
        return added(fixture, connections[ALIAS], events)
    with atomic(using=ALIAS):
        outcomes = added(fixture, connections[ALIAS], events)
        set_rollback(end == "rollback", using=ALIAS)
    return outcomes


def on_sqlalchemy(scheme: str, *, session: bool = False) -> Way:
    def way(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
        engine = sqlalchemy.create_engine(_url(fixture, scheme), poolclass=sqlalchemy.NullPool, **_level(end))
        with Session(engine) if session else engine.connect() as connection:
            outcomes = added(fixture, connection, events)
            connection.rollback() if end == "rollback" else connection.commit()
        engine.dispose()
        return outcomes

    return way


def on_async_sqlalchemy(scheme: str, *, session: bool = False) -> Way:
    async def way(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
        engine = create_async_engine(_url(fixture, scheme), poolclass=sqlalchemy.NullPool, **_level(end))
        async with AsyncSession(engine) if session else engine.connect() as connection:
            outcomes = await added_async(fixture, connection, events)
            await (connection.rollback() if end == "rollback" else connection.commit())
        await engine.dispose()
        return outcomes

    return awaited(way)


def awaited(way: Callable[[OutboxFixture, Sequence[DomainEvent], End], Awaitable[list[Outcome]]]) -> Way:
    """The way in an event loop of its own."""

    def run(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
        async def work() -> list[Outcome]:
            return await way(fixture, events, end)

        return asyncio.run(work())

    return run


@awaited
async def on_async_psycopg(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    async with await psycopg.AsyncConnection.connect(fixture.dsn, autocommit=end == "autocommit") as connection:
        outcomes = await added_async(fixture, connection, events)
        if end == "rollback":
            await connection.rollback()
    return outcomes


async def _on_asyncpg(
    connection: Any, fixture: OutboxFixture, events: Sequence[DomainEvent], end: End
) -> list[Outcome]:
    if end == "autocommit":
        return await added_async(fixture, connection, events)
    transaction = connection.transaction()
    await transaction.start()
    outcomes = await added_async(fixture, connection, events)
    await (transaction.rollback() if end == "rollback" else transaction.commit())
    return outcomes


@awaited
async def on_asyncpg(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    connection = await asyncpg.connect(fixture.dsn)
    try:
        # An application may have codecs of its own.
        await connection.set_type_codec("jsonb", encoder=repr, decoder=repr, schema="pg_catalog")
        return await _on_asyncpg(connection, fixture, events, end)
    finally:
        await connection.close()


@awaited
async def on_a_pool_of_asyncpg(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    async with asyncpg.create_pool(fixture.dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        return await _on_asyncpg(connection, fixture, events, end)


@awaited
async def on_asyncpg_without_await(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    connection = await asyncpg.connect(fixture.dsn)
    try:
        return added(fixture, connection, events)
    finally:
        await connection.close()


@awaited
async def on_aiosqlite(fixture: OutboxFixture, events: Sequence[DomainEvent], end: End) -> list[Outcome]:
    async with aiosqlite.connect(fixture.dsn.removeprefix("sqlite:///")) as connection:
        return await added_async(fixture, connection, events)


def _url(fixture: OutboxFixture, scheme: str) -> str:
    return f"{scheme}://{fixture.dsn.partition('://')[2]}"


def _level(end: End) -> dict[str, Any]:
    return {"isolation_level": "AUTOCOMMIT"} if end == "autocommit" else {}


RECORDING: list[tuple[str, str, Way]] = [
    ("psycopg", "on_postgres", on_psycopg),
    ("async psycopg", "on_postgres", on_async_psycopg),
    ("asyncpg", "on_postgres", on_asyncpg),
    ("a pool of asyncpg", "on_postgres", on_a_pool_of_asyncpg),
    ("SQLAlchemy on psycopg", "on_postgres", on_sqlalchemy("postgresql+psycopg")),
    ("SQLAlchemy on psycopg2", "on_postgres", on_sqlalchemy("postgresql+psycopg2")),
    ("a session on psycopg", "on_postgres", on_sqlalchemy("postgresql+psycopg", session=True)),
    ("a session on psycopg2", "on_postgres", on_sqlalchemy("postgresql+psycopg2", session=True)),
    ("SQLAlchemy on async psycopg", "on_postgres", on_async_sqlalchemy("postgresql+psycopg")),
    ("SQLAlchemy on asyncpg", "on_postgres", on_async_sqlalchemy("postgresql+asyncpg")),
    ("a session on async psycopg", "on_postgres", on_async_sqlalchemy("postgresql+psycopg", session=True)),
    ("a session on asyncpg", "on_postgres", on_async_sqlalchemy("postgresql+asyncpg", session=True)),
    ("Django on PostgreSQL", "on_postgres", on_django),
    ("sqlite3", "on_sqlite", on_sqlite3),
    ("SQLAlchemy on sqlite3", "on_sqlite", on_sqlalchemy("sqlite")),
    ("a session on sqlite3", "on_sqlite", on_sqlalchemy("sqlite", session=True)),
    ("SQLAlchemy on aiosqlite", "on_sqlite", on_async_sqlalchemy("sqlite+aiosqlite")),
    ("a session on aiosqlite", "on_sqlite", on_async_sqlalchemy("sqlite+aiosqlite", session=True)),
    ("Django on SQLite", "on_sqlite", on_django),
]
REFUSED: list[tuple[str, str, Way]] = [
    ("psycopg2", "on_postgres", on_psycopg2),
    ("asyncpg without await", "on_postgres", on_asyncpg_without_await),
    ("aiosqlite", "on_sqlite", on_aiosqlite),
]


@pytest.mark.parametrize(
    ("fixture", "way"), [case[1:] for case in RECORDING], ids=[case[0] for case in RECORDING], indirect=["fixture"]
)
def test_an_event_is_recorded_in_the_transaction_of_any_driver(
    fixture: OutboxFixture, way: Way, request: pytest.FixtureRequest
) -> None:
    if way is on_django:
        request.getfixturevalue("django_connection")
    first, second = an_event(payload={"text": "ä ? % $1 \\"}), an_event(tenant_id="acme")
    bad = an_event(tenant_id="a:b")

    committed = way(fixture, [first, first, bad, second], "commit")
    again = way(fixture, [first, an_event()], "rollback")
    alone = way(fixture, [an_event()], "autocommit")

    assert (committed[0], committed[3]) == (first.event_id, second.event_id)
    assert [type(outcome) for outcome in committed[1:3]] == [DuplicateEvent, InvalidMessage]
    assert [type(outcome) for outcome in again] == [DuplicateEvent, UUID]
    assert [type(outcome) for outcome in alone] == [NotInTransaction]
    stored = fixture.run("SELECT event_id, tenant, lane, CAST(payload AS text) FROM outbox ORDER BY seq")
    assert [row[:3] for row in stored] == [
        (str(first.event_id), None, "tr_1"),
        (str(second.event_id), "acme", "tr_1"),
    ]
    assert DomainEvent.from_json(stored[0][3]) == first


@pytest.mark.parametrize(
    ("fixture", "way"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED], indirect=["fixture"]
)
def test_a_driver_that_is_not_supported_is_refused_by_naming_those_that_are(fixture: OutboxFixture, way: Way) -> None:
    (error,) = way(fixture, [an_event()], "commit")

    assert isinstance(error, TypeError)
    assert "psycopg" in str(error)
    assert "SQLAlchemy" in str(error)
    assert fixture.count() == 0


@pytest.mark.parametrize(
    ("fixture", "way"), [case[1:] for case in RECORDING], ids=[case[0] for case in RECORDING], indirect=["fixture"]
)
def test_missing_tables_are_told_with_the_remedy_by_any_driver(
    fixture: OutboxFixture, way: Way, request: pytest.FixtureRequest
) -> None:
    if way is on_django:
        request.getfixturevalue("django_connection")
    fixture.run("DROP TABLE outbox")

    (error,) = way(fixture, [an_event()], "rollback")

    assert isinstance(error, SchemaMismatch)
    assert "postroad outbox init" in error.remedy


def test_importing_the_outbox_loads_no_driver_and_no_log_library() -> None:
    heavy = ("psycopg", "asyncpg", "sqlalchemy", "cryptography", "structlog")
    code = f"import sys, postroad.outbox; print(*[name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
