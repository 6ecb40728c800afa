"""A bus with an inbox: the effect of each handler happens once, whatever fails or comes again."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiosqlite
import pytest
from tests.platform.events import QUICK, OrderPlaced, Shop, note, received
from tests.waiting import eventually

from postroad import Backend
from postroad.bus import TopicEventBus
from postroad.errors import ConfigurationError
from postroad.inbox import Inbox


@pytest.fixture
def open_bus(backend: Backend, topic: str, inbox: Inbox) -> Callable[[], TopicEventBus]:
    return lambda: backend.bus(topic, "billing", inbox=inbox, config=QUICK)


def test_a_handler_runs_in_the_transaction_of_its_inbox_row(
    open_bus: Callable[[], TopicEventBus], shop: Shop, inbox: Inbox, topic: str
) -> None:
    bus = open_bus()

    @bus.on(OrderPlaced, name="bill")
    def bill(event: OrderPlaced, connection: sqlite3.Connection) -> None:
        note(connection, "bill", event)

    result = bus.publish(OrderPlaced("A-1", 7))

    assert result.handled_count == 0
    assert received(bus) == [OrderPlaced("A-1", 7)]
    assert shop.ledger() == [("A-1", 7)]
    assert result.event_id is not None
    assert inbox.processed(f"{topic}/billing/bill", [result.event_id]) == {result.event_id}


def test_a_retry_runs_only_the_handlers_that_failed_also_in_another_process(
    open_bus: Callable[[], TopicEventBus], shop: Shop
) -> None:
    failures = [RuntimeError("not now")]

    def subscribed(bus: TopicEventBus) -> TopicEventBus:
        @bus.on(OrderPlaced, name="bill")
        def bill(event: OrderPlaced, connection: sqlite3.Connection) -> None:
            note(connection, "bill", event)

        @bus.on(OrderPlaced, name="mail")
        def mail(event: OrderPlaced, connection: sqlite3.Connection) -> None:
            note(connection, "mail", event)
            if failures:
                raise failures.pop()

        return bus

    first = subscribed(open_bus())
    first.publish(OrderPlaced("A-1"))
    eventually(lambda: first.receive_once() or first.health().failed)
    after_failure = shop.ledger("bill"), shop.ledger("mail")
    first.close()
    second = subscribed(open_bus())

    received(second)

    assert after_failure == ([("A-1", 0)], [])
    assert (shop.ledger("bill"), shop.ledger("mail")) == ([("A-1", 0)], [("A-1", 0)])


def test_an_inbox_needs_a_group_and_no_local_dispatch(backend: Backend, topic: str, inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="group"):
        backend.bus(topic, inbox=inbox)
    with pytest.raises(ConfigurationError, match="local"):
        backend.bus(topic, "billing", local=True, inbox=inbox)


def test_two_handlers_of_one_name_are_refused(open_bus: Callable[[], TopicEventBus]) -> None:
    bus = open_bus()
    bus.on(OrderPlaced, name="bill")(lambda event, connection: None)

    with pytest.raises(ConfigurationError, match="name"):
        bus.on(OrderPlaced, name="bill")(lambda event, connection: None)


def test_async_handlers_share_an_awaited_transaction_with_their_inbox_rows(
    backend: Backend, topic: str, inbox: Inbox, shop: Shop
) -> None:
    failures = [RuntimeError("not now")]

    @asynccontextmanager
    async def transaction() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(shop.path, timeout=30) as connection:
            yield connection
            await connection.commit()

    bus = backend.bus(topic, "billing", inbox=inbox, transaction=transaction, config=QUICK)

    @bus.on(OrderPlaced, name="bill")
    async def bill(event: OrderPlaced, connection: aiosqlite.Connection) -> None:
        await connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", ("bill", event.order_id, event.number))

    @bus.on(OrderPlaced, name="mail")
    async def mail(event: OrderPlaced, connection: aiosqlite.Connection) -> None:
        await connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", ("mail", event.order_id, event.number))
        if failures:
            raise failures.pop()

    bus.publish(OrderPlaced("A-1"))
    eventually(lambda: bus.receive_once())

    assert (shop.ledger("bill"), shop.ledger("mail")) == ([("A-1", 0)], [("A-1", 0)])


def test_an_async_handler_without_a_transaction_is_refused(open_bus: Callable[[], TopicEventBus]) -> None:
    async def bill(event: OrderPlaced, connection: object) -> None: ...

    with pytest.raises(ConfigurationError, match="transaction") as caught:
        open_bus().on(OrderPlaced)(bill)

    assert caught.value.field == "transaction"
