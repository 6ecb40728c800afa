"""Async handlers: their effects share an awaited transaction with the inbox row, on each driver."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.inbox.fixtures import POST, InboxFixture
from tests.inbox.mail import drained, event, held, send
from tests.waiting import eventually

from postroad import Queue
from postroad.errors import ConfigurationError, NotInTransaction, SchemaMismatch
from postroad.inbox import Consumer, DomainEvent, Effect, EffectNotDone, Inbox
from postroad.receiving import current_context

Opens = Callable[[], AbstractAsyncContextManager[Any]]
SQLITE, POSTGRES = ("aiosqlite", "sqlalchemy", "session"), ("psycopg", "sqlalchemy", "session", "asyncpg")


@asynccontextmanager
async def opened(dsn: str, driver: str) -> AsyncIterator[Any]:
    """A transaction on a connection of its own, as an application opens it."""
    if driver == "aiosqlite":
        async with aiosqlite.connect(dsn.removeprefix("sqlite:///"), timeout=30) as connection:
            yield connection
            await connection.commit()
    elif driver == "psycopg":
        async with await psycopg.AsyncConnection.connect(dsn) as plain:
            yield plain
    elif driver == "asyncpg":
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    else:
        url = dsn.replace("sqlite:///", "sqlite+aiosqlite:///").replace("postgresql://", "postgresql+psycopg://")
        engine = create_async_engine(url, poolclass=sqlalchemy.NullPool)
        try:
            async with engine.begin() as begun, AsyncSession(begun) as session:
                yield session if driver == "session" else begun
                await session.flush()
        finally:
            await engine.dispose()


async def post(connection: Any, account: str) -> None:
    """Make the effect that is counted."""
    if isinstance(connection, AsyncSession) or hasattr(connection, "run_sync"):
        await connection.execute(sqlalchemy.text(POST.format(account)))
    else:
        await connection.execute(POST.format(account))


@pytest.fixture(params=[f"sqlite-{each}" for each in SQLITE] + [f"postgres-{each}" for each in POSTGRES])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param).partition("-")[2]


@pytest.fixture
def fixture(driver: str, request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    from tests.inbox.fixtures import inbox_fixture

    on_sqlite = request.node.callspec.params["driver"].startswith("sqlite")
    with inbox_fixture(
        f"sqlite:///{tmp_path}/app.db" if on_sqlite else request.getfixturevalue("postgres_dsn")
    ) as made:
        yield made


@pytest.fixture
def transaction(fixture: InboxFixture, driver: str) -> Opens:
    return lambda: opened(fixture.dsn, driver)


def test_an_event_is_remembered_in_the_awaited_transaction(inbox: Inbox, transaction: Opens) -> None:
    one, other = event("1"), event("2")

    async def work() -> list[bool]:
        found = []
        async with transaction() as connection:
            found += [await inbox.first_time_async(connection, "c", one.event_id) for _ in range(2)]
        with pytest.raises(ZeroDivisionError):
            async with transaction() as connection:
                found.append(await inbox.first_time_async(connection, "c", other.event_id))
                raise ZeroDivisionError
        async with transaction() as connection:
            found += [await inbox.first_time_async(connection, "c", each.event_id) for each in (one, other)]
        return found

    assert asyncio.run(work()) == [True, False, True, False, True]


def test_a_consumer_handles_each_event_once_with_an_async_handler(
    fixture: InboxFixture, inbox: Inbox, transaction: Opens, queue: Queue
) -> None:
    contexts: list[object] = []
    failures = [RuntimeError("not now")]

    async def handler(event: DomainEvent, connection: Any) -> None:
        contexts.append(current_context())
        await post(connection, event.key["transferId"])
        if failures:
            raise failures.pop()

    consumer = Consumer(queue, handler, name="c", inbox=inbox, transaction=transaction)
    one = event("a")
    send(queue, one, event("b"))
    send(queue, one, copy="again")

    report = drained(consumer, queue)

    assert (report.handled, report.duplicates, report.failed) == (2, 1, 1)
    assert (fixture.times("a"), fixture.times("b")) == (1, 1)
    assert all(context is not None for context in contexts)


class TestOnOneDriver:
    """What does not depend on the driver."""

    @pytest.fixture(params=["sqlite-aiosqlite", "postgres-psycopg"])
    def driver(self, request: pytest.FixtureRequest) -> str:
        return str(request.param).partition("-")[2]

    def test_handlers_run_on_the_loop_of_the_program_and_see_its_context(
        self, fixture: InboxFixture, inbox: Inbox, transaction: Opens, queue: Queue
    ) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
        seen: list[object] = []

        async def handler(event: DomainEvent, connection: Any) -> None:
            await post(connection, event.key["transferId"])
            seen.extend([asyncio.get_running_loop(), variable.get()])

        async def main() -> object:
            variable.set("theirs")
            consumer = Consumer(queue, handler, name="c", inbox=inbox, transaction=transaction)
            stop = asyncio.Event()
            running = asyncio.create_task(consumer.arun(stop))
            send(queue, event("a"))
            async with asyncio.timeout(60):
                while await asyncio.to_thread(held, queue):
                    await asyncio.sleep(0.01)
            stop.set()
            await running
            return asyncio.get_running_loop()

        loop = asyncio.run(main())

        assert seen == [loop, "theirs"]
        assert fixture.times("a") == 1

    def test_a_handler_that_outlasts_a_stop_is_cancelled_rolled_back_and_released(
        self, fixture: InboxFixture, inbox: Inbox, transaction: Opens, queue: Queue
    ) -> None:
        async def slow(event: DomainEvent, connection: Any) -> None:
            await post(connection, event.key["transferId"])
            began.set()
            await asyncio.sleep(60)

        async def main() -> None:
            consumer = Consumer(queue, slow, name="c", inbox=inbox, transaction=transaction)
            consumer.start()
            await began.wait()
            await asyncio.to_thread(consumer.stop, 0.1)

        began = asyncio.Event()
        send(queue, event("a"))
        asyncio.run(main())

        eventually(lambda: queue.stats().visible == 1)
        assert fixture.times("a") == 0

    def test_a_transaction_that_does_not_commit_or_was_ended_is_noticed(
        self, inbox: Inbox, transaction: Opens, queue: Queue, fixture: InboxFixture
    ) -> None:
        @asynccontextmanager
        async def forgetful() -> AsyncIterator[Any]:
            with pytest.raises(ZeroDivisionError):
                async with transaction() as connection:
                    yield connection
                    raise ZeroDivisionError

        async def handler(event: DomainEvent, connection: Any) -> None:
            await post(connection, event.key["transferId"])

        async def ending(event: DomainEvent, connection: Any) -> None:
            await post(connection, event.key["transferId"])
            await connection.rollback()

        send(queue, event("a"), event("b"))

        for name, consumer in (
            ("forgetful", Consumer(queue, handler, name="c", inbox=inbox, transaction=forgetful)),
            ("ending", Consumer(queue, ending, name="c", inbox=inbox, transaction=transaction)),
        ):
            assert consumer.run_once(wait=5).handled == 0, name
        assert fixture.times("a") == 0
        assert held(queue) == 2

    def test_effects_outside_may_be_made_by_async_handlers(self, inbox: Inbox, queue: Queue) -> None:
        made: list[str] = []
        not_done = [EffectNotDone("the line was busy")]

        async def call(event: DomainEvent, effect: Effect) -> None:
            await asyncio.sleep(0)
            if not_done:
                raise not_done.pop()
            made.append(effect.idempotency_key)

        consumer = Consumer(queue, call, name="c", inbox=inbox, effects="external")
        one = event("a")
        send(queue, one)

        report = drained(consumer, queue)

        assert (report.handled, report.failed) == (1, 1)
        assert made == [f"c:{one.event_id}"]

    def test_the_wrong_kind_of_transaction_is_refused_and_loses_nothing(
        self, inbox: Inbox, transaction: Opens, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def handler(event: DomainEvent, connection: Any) -> None:
            raise AssertionError("it must not run")

        def plain(event: DomainEvent, connection: Any) -> None:
            raise AssertionError("it must not run")

        send(queue, event("a"))

        with pytest.raises(ConfigurationError, match="transaction: is missing"):
            Consumer(queue, handler, name="c", inbox=inbox)
        wrong = [
            Consumer(queue, handler, name="c", inbox=inbox, transaction=inbox.transaction),
            Consumer(queue, plain, name="c", inbox=inbox, transaction=transaction),
        ]

        assert [consumer.run_once(wait=5).failed for consumer in wrong] == [1, 1]
        assert "transaction: opens a plain connection" in caplog.text
        assert "transaction: opens an asynchronous connection" in caplog.text
        assert held(queue) == 1

    def test_connections_that_commit_by_themselves_and_missing_tables_are_refused(
        self, inbox: Inbox, fixture: InboxFixture, driver: str
    ) -> None:
        async def work() -> None:
            if driver == "aiosqlite":
                path = fixture.dsn.removeprefix("sqlite:///")
                async with aiosqlite.connect(path, isolation_level=None) as connection:
                    with pytest.raises(NotInTransaction):
                        await inbox.first_time_async(connection, "c", event("a").event_id)
            else:
                async with await psycopg.AsyncConnection.connect(fixture.dsn, autocommit=True) as connection:
                    with pytest.raises(NotInTransaction):
                        await inbox.first_time_async(connection, "c", event("a").event_id)
            fixture.rows("DROP TABLE inbox")
            with pytest.raises(SchemaMismatch):
                async with opened(fixture.dsn, driver) as connection:
                    await inbox.first_time_async(connection, "c", event("a").event_id)
            with pytest.raises(TypeError, match="aiosqlite"):
                await inbox.first_time_async(object(), "c", event("a").event_id)

        asyncio.run(work())
