"""An event whose handler's coroutine is dropped, by a middleware or a plain handler, is not handled."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from tests.bus.conftest import MakeBus, Opens
from tests.bus.test_middleware import REMOTE, anoting, noting, written
from tests.bus.vocabulary import QUICK, Placed, Shipped

from postroad import Backend, Queue
from postroad.bus import EventHandler, InProcessEventBus, Middleware
from postroad.errors import ConfigurationError
from postroad.inbox import Inbox
from postroad.queues import read_dead
from postroad.queues.sqlite import SQLiteQueues


def forgets_to_return(handler: EventHandler) -> EventHandler:
    def call(*arguments: Any) -> None:
        handler(*arguments)

    return call


def forgets_to_await(handler: EventHandler) -> EventHandler:
    async def call(*arguments: Any) -> None:
        handler(*arguments)

    return call


FORGETFUL = pytest.mark.parametrize("forgetful", [forgets_to_return, forgets_to_await])


@FORGETFUL
@pytest.mark.parametrize("around", [[], [noting], [anoting]], ids=["alone", "inside plain", "inside async"])
def test_an_event_is_retried_if_a_middleware_drops_the_coroutine_of_its_handler(
    make_bus: MakeBus, queues: SQLiteQueues, queue: Queue, forgetful: Middleware, around: list[Any]
) -> None:
    calls: list[object] = []
    bus = make_bus(queue, replace(REMOTE, max_receives=2))
    bus.use(*(each("outer", []) for each in around), forgetful, noting("inner", []))

    @bus.on(Placed)
    async def bill(event: Placed) -> None:
        calls.append(event)

    bus.publish(Placed())
    first, second = bus.receive_once(), bus.receive_once()

    assert (first, second, calls) == ([], [], [])
    (dead,) = queues.queue("work-dead").peek()
    assert f"{forgetful.__name__} neither returned nor awaited" in str(read_dead(dead.attributes))


@FORGETFUL
@pytest.mark.parametrize("how", ["publish", "apublish"])
def test_a_publish_reports_that_a_middleware_dropped_the_coroutine_of_a_handler(
    backend: Backend, forgetful: Middleware, how: str
) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)
    bus.use(forgetful)

    @bus.on(Placed)
    async def bill(event: Placed) -> None: ...

    result = bus.publish(Placed()) if how == "publish" else asyncio.run(bus.apublish(Placed()))

    (failure,) = result.errors
    assert isinstance(failure.error, ConfigurationError)
    assert failure.error.field == "middleware"
    assert "return await handler(event)" in failure.error.remedy


def test_a_coroutine_is_found_dropped_although_the_middleware_publishes_on_another_bus(backend: Backend) -> None:
    audit, bus = InProcessEventBus(), InProcessEventBus()
    audit.use(noting("audit", []))
    audit.subscribe(Shipped, lambda event: None)

    def auditing(handler: EventHandler) -> EventHandler:
        def call(event: object) -> None:
            audit.publish(Shipped())
            handler(event)

        return call

    async def bill(event: Placed) -> None: ...

    bus.use(auditing)
    bus.subscribe(Placed, bill)

    (failure,) = bus.publish(Placed()).errors
    assert "auditing neither returned nor awaited" in str(failure.error)


def test_a_middleware_can_tell_async_handlers_from_plain_ones_and_run_them_itself() -> None:
    calls: list[object] = []
    bus = InProcessEventBus()

    def running(handler: EventHandler) -> EventHandler:
        def call(event: object) -> None:
            if inspect.iscoroutinefunction(handler):
                asyncio.run(handler(event))
            else:
                handler(event)

        return call

    async def bill(event: Placed) -> None:
        calls.append(event)

    bus.use(running)
    bus.subscribe(Placed, bill)
    bus.subscribe(Placed, calls.append)

    assert bus.publish(Placed()).errors == ()
    assert calls == [Placed(), Placed()]


@FORGETFUL
def test_with_an_inbox_a_dropped_coroutine_leaves_no_inbox_row(
    backend: Backend, inbox: Inbox, shop: Path, transaction: Opens, forgetful: Middleware
) -> None:
    drops = [True]
    bus = backend.bus("orders", "ledger", inbox=inbox, transaction=transaction, config=QUICK)

    @bus.on(Placed)
    async def post(event: Placed, connection: aiosqlite.Connection) -> None:
        await connection.execute("INSERT INTO ledger VALUES (?)", (event.number,))

    def at_first(handler: EventHandler) -> EventHandler:
        dropping = forgetful(handler)
        return lambda *arguments: (dropping if drops else handler)(*arguments)

    bus.use(at_first)
    bus.publish(Placed(1))
    first = bus.receive_once()
    drops.clear()
    second = bus.receive_once()

    assert (first, second, written(shop)) == ([], [Placed(1)], [1])


def test_with_an_inbox_a_plain_handler_that_returns_a_coroutine_fails(
    backend: Backend, inbox: Inbox, shop: Path
) -> None:
    bus = backend.bus("orders", "ledger", inbox=inbox, config=replace(QUICK, max_receives=1))

    async def post(event: Placed, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO ledger VALUES (?)", (event.number,))

    bus.on(Placed)(lambda event, connection: post(event, connection))
    bus.publish(Placed(1))

    assert bus.receive_once() == []
    (dead,) = backend.queue("orders--ledger--dead").peek()
    assert "handler: returned a coroutine" in str(read_dead(dead.attributes))
