"""Middleware: `handler -> handler`, around each handler of a bus, plain and async."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from tests.bus.conftest import MakeBus, Opens
from tests.bus.vocabulary import QUICK, Placed, Shipped

from postroad import Backend, Queue, current_context
from postroad.bus import EventHandler, InProcessEventBus, Middleware
from postroad.errors import ConfigurationError
from postroad.inbox import Inbox

REMOTE = replace(QUICK, local_dispatch=False)


def noting(name: str, order: list[str]) -> Middleware:
    """A middleware for plain handlers."""

    def middleware(handler: EventHandler) -> EventHandler:
        @functools.wraps(handler)
        def call(*arguments: Any) -> Any:
            order.append(f"{name} in")
            try:
                return handler(*arguments)
            finally:
                order.append(f"{name} out")

        return call

    return middleware


def anoting(name: str, order: list[str]) -> Middleware:
    """A middleware for async handlers."""

    def middleware(handler: EventHandler) -> EventHandler:
        async def call(*arguments: Any) -> Any:
            order.append(f"{name} in")
            try:
                return await handler(*arguments)
            finally:
                order.append(f"{name} out")

        return call

    return middleware


def test_middleware_runs_in_its_order_around_each_handler(make_bus: MakeBus, queue: Queue) -> None:
    order: list[str] = []
    bus = make_bus(queue, REMOTE)
    bus.use(noting("timing", order), noting("tracing", order))
    bus.on(Placed)(lambda event: order.append("bill"))
    bus.on(Placed)(lambda event: order.append("mail"))
    bus.publish(Placed())

    bus.receive_once()

    around = ["timing in", "tracing in", "bill", "tracing out", "timing out"]
    assert order == [*around, *(each.replace("bill", "mail") for each in around)]


def test_async_middleware_runs_around_async_handlers(make_bus: MakeBus, queue: Queue) -> None:
    order: list[str] = []
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed)
    async def bill(event: Placed) -> None:
        await asyncio.sleep(0)
        order.append("bill")

    bus.use(anoting("timing", order), anoting("tracing", order))
    bus.publish(Placed())
    bus.receive_once()

    assert order == ["timing in", "tracing in", "bill", "tracing out", "timing out"]


def test_handlers_that_were_subscribed_before_and_after_are_both_wrapped(make_bus: MakeBus, queue: Queue) -> None:
    order: list[str] = []
    bus = make_bus(queue, REMOTE)
    bus.on(Placed)(lambda event: order.append("on"))
    bus.use(noting("timing", order))
    bus.subscribe(Placed, lambda event: order.append("subscribe"))
    bus.on_any(lambda event: order.append("any"))
    bus.use(noting("tracing", order))
    bus.publish(Placed())

    bus.receive_once()

    assert order[:5] == ["timing in", "tracing in", "on", "tracing out", "timing out"]
    assert (order[7], order[12], len(order)) == ("subscribe", "any", 15)


@pytest.mark.parametrize("how", ["publish", "apublish"])
def test_middleware_runs_for_events_of_this_process_and_results_name_the_handler_itself(
    backend: Backend, how: str
) -> None:
    order: list[str] = []
    bus = backend.bus("orders", local=True, config=QUICK)

    def bill(event: Placed) -> None:
        order.append("bill")
        raise ValueError("no such order")

    bus.use(noting("timing", order))
    bus.on(Placed)(bill)
    result = bus.publish(Placed()) if how == "publish" else asyncio.run(bus.apublish(Placed()))

    assert order == ["timing in", "bill", "timing out"]
    assert result.handlers_invoked == (bill,)
    assert result.errors[0].handler is bill
    assert bus.unsubscribe(Placed, bill)


def test_plain_middleware_may_wrap_an_async_handler(make_bus: MakeBus, queue: Queue) -> None:
    order: list[str] = []
    bus = make_bus(queue, REMOTE)
    bus.use(noting("counting", order))

    @bus.on(Placed)
    async def bill(event: Placed) -> None:
        await asyncio.sleep(0)
        order.append("bill")

    bus.publish(Placed())

    assert bus.receive_once() == [Placed()]
    assert order == ["counting in", "counting out", "bill"]


def test_async_middleware_may_wrap_a_plain_handler_which_then_runs_in_a_thread(make_bus: MakeBus, queue: Queue) -> None:
    order: list[str] = []
    threads: list[object] = []
    bus = make_bus(queue, REMOTE)

    def bill(event: Placed) -> None:
        threads.append(threading.current_thread())
        order.append("bill")

    bus.on(Placed)(bill)
    bus.use(anoting("timing", order), noting("inner", order))
    bus.publish(Placed())

    assert bus.receive_once() == [Placed()]
    assert order == ["timing in", "inner in", "bill", "inner out", "timing out"]
    assert threads != [threading.current_thread()]


def test_the_error_of_a_plain_handler_passes_an_async_middleware(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[str] = []
    bus = make_bus(queue, replace(REMOTE, max_receives=1))

    def catching(handler: EventHandler) -> EventHandler:
        async def call(event: object) -> None:
            try:
                await handler(event)
            except ValueError as error:
                seen.append(str(error))
                raise

        return call

    @bus.on(Placed)
    def bill(event: Placed) -> None:
        raise ValueError("no such order")

    bus.use(catching)
    bus.publish(Placed())

    assert bus.receive_once() == []
    assert seen == ["no such order"]


def test_middleware_may_swallow_an_error_and_leave_a_handler_out(make_bus: MakeBus, queue: Queue) -> None:
    calls: list[object] = []
    bus = make_bus(queue, REMOTE)

    def skipping(handler: EventHandler) -> EventHandler:
        return lambda event: None if event.number == 2 else handler(event)

    bus.use(skipping)
    bus.on(Placed)(calls.append)
    bus.publish_many([Placed(1), Placed(2), Placed(3)])

    assert bus.receive_once() == [Placed(1), Placed(2), Placed(3)]
    assert calls == [Placed(1), Placed(3)]


def test_middleware_sees_the_envelope_and_the_timeout_of_the_handler(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, replace(REMOTE, max_receives=1))

    def watching(handler: EventHandler) -> EventHandler:
        async def call(event: object) -> None:
            context = current_context()
            seen.append(context is not None and context.envelope.event_type)
            try:
                await handler(event)
            except TimeoutError as error:
                seen.append(str(error))
                raise

        return call

    @bus.on(Placed, timeout=0.05)
    async def slow(event: Placed) -> None:
        await asyncio.sleep(60)

    bus.use(watching)
    bus.publish(Placed())
    bus.receive_once()

    assert seen == ["tests.bus.vocabulary:Placed", "the handler took longer than 0.05 s"]


class Timing:
    """A class whose instances are handlers."""

    def __init__(self, handler: EventHandler) -> None:
        self.handler = handler

    async def __call__(self, event: object) -> Any:
        return await self.handler(event)


def test_a_class_can_be_a_middleware(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, REMOTE)
    bus.use(Timing)

    @bus.on(Placed)
    async def bill(event: Placed) -> None: ...

    bus.publish(Placed())

    assert bus.receive_once() == [Placed()]


async def forgot(handler: EventHandler) -> EventHandler:
    return handler


@pytest.mark.parametrize("wrong", [lambda handler: None, lambda handler: 5, lambda: print, forgot, None, "timing"])
@pytest.mark.parametrize("has_handlers", [True, False])
def test_a_middleware_that_returns_no_handler_is_refused_and_nothing_changes(
    backend: Backend, wrong: Any, has_handlers: bool
) -> None:
    order: list[str] = []
    bus = backend.bus("orders", local=True, config=QUICK)
    if has_handlers:
        bus.on(Placed, name="bill")(lambda event: order.append("bill"))

    with pytest.raises(ConfigurationError, match="middleware") as caught:
        bus.use(noting("timing", order), wrong)

    assert caught.value.field == "middleware"
    bus.on(Placed, name="mail")(lambda event: order.append("mail"))
    bus.publish(Placed())
    assert order == [*(["bill"] if has_handlers else []), "mail"]


def test_a_middleware_that_returns_nothing_for_one_handler_refuses_that_one(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)

    def for_functions(handler: EventHandler) -> Any:
        return None if getattr(handler, "__name__", "") == "append" else handler

    bus.use(for_functions)

    with pytest.raises(ConfigurationError, match=r"middleware: .*for_functions returned None"):
        bus.on(Placed)(list[object]().append)

    assert bus.publish(Placed()).handlers_invoked == ()


def test_a_bus_inside_the_process_takes_middleware_too() -> None:
    order: list[str] = []
    bus = InProcessEventBus()
    bus.subscribe(Placed, lambda event: order.append("bill"))

    bus.use(noting("timing", order))
    bus.publish(Placed())

    assert order == ["timing in", "bill", "timing out"]


def written(shop: Path) -> list[int]:
    with sqlite3.connect(shop) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM ledger")]


def test_with_an_inbox_middleware_runs_inside_the_transaction(backend: Backend, inbox: Inbox, shop: Path) -> None:
    order: list[str] = []
    bus = backend.bus("orders", "ledger", inbox=inbox, config=QUICK)

    def undoing(handler: EventHandler) -> EventHandler:
        def call(event: Any, connection: sqlite3.Connection) -> None:
            handler(event, connection)
            if event.number == 2:
                raise ValueError("undo it")

        return call

    @bus.on(Placed)
    def post(event: Placed, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO ledger VALUES (?)", (event.number,))

    bus.use(noting("timing", order), undoing)
    bus.publish_many([Placed(1), Placed(2)])
    bus.receive_once()

    assert written(shop) == [1]
    assert order == ["timing in", "timing out"] * 2


def test_with_an_inbox_a_timeout_undoes_what_was_written(
    backend: Backend, inbox: Inbox, shop: Path, transaction: Opens
) -> None:
    calls: list[str] = []
    bus = backend.bus("orders", "ledger", inbox=inbox, transaction=transaction, config=QUICK)

    @bus.on(Placed, timeout=0.5)
    async def post(event: Placed, connection: aiosqlite.Connection) -> None:
        calls.append("began")
        await connection.execute("INSERT INTO ledger VALUES (?)", (calls.count("began"),))
        await asyncio.sleep(60 if calls.count("began") == 1 else 0)

    bus.use(anoting("timing", calls))
    bus.publish(Placed())
    first, second = bus.receive_once(), bus.receive_once()

    assert (first, second) == ([], [Placed()])
    assert written(shop) == [2]
    assert calls == ["timing in", "began", "timing out"] * 2


def test_with_an_inbox_plain_middleware_may_leave_an_async_handler_out(
    backend: Backend, inbox: Inbox, shop: Path, transaction: Opens
) -> None:
    bus = backend.bus("orders", "ledger", inbox=inbox, transaction=transaction, config=QUICK)

    def skipping(handler: EventHandler) -> EventHandler:
        return lambda event, connection: None if event.number == 2 else handler(event, connection)

    @bus.on(Placed)
    async def post(event: Placed, connection: aiosqlite.Connection) -> None:
        await connection.execute("INSERT INTO ledger VALUES (?)", (event.number,))

    bus.use(skipping)
    bus.publish_many([Placed(1), Placed(2), Placed(3)])

    assert bus.receive_once() == [Placed(1), Placed(2), Placed(3)]
    assert written(shop) == [1, 3]


@pytest.mark.parametrize("order", ["use first", "handler first"])
def test_with_an_inbox_async_middleware_is_refused_around_a_plain_handler(
    backend: Backend, inbox: Inbox, order: str
) -> None:
    bus = backend.bus("orders", "ledger", inbox=inbox, config=QUICK)

    def post(event: Placed, connection: sqlite3.Connection) -> None: ...

    def subscribe() -> None:
        bus.on(Placed)(post)

    def use() -> None:
        bus.use(anoting("timing", []))

    first, second = (use, subscribe) if order == "use first" else (subscribe, use)
    first()

    with pytest.raises(ConfigurationError, match=r"middleware: .*anoting.* is async") as caught:
        second()

    assert caught.value.field == "middleware"


def test_with_an_inbox_a_handler_may_take_every_event(backend: Backend, inbox: Inbox, shop: Path) -> None:
    bus = backend.bus("orders", "ledger", inbox=inbox, config=QUICK)

    @bus.on_any
    def post(event: Any, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO ledger VALUES (?)", (event.number,))

    bus.publish_many([Placed(1), Shipped(2)])
    bus.receive_once()

    assert written(shop) == [1, 2]
