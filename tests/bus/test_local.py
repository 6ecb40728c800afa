"""The bus inside one process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from postroad import EventRegistry
from postroad.bus import EventBus, HandlerFailure, InProcessEventBus, PublishResult, current_context

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@dataclass(frozen=True)
class Placed:
    number: int = 1


class Special(Placed):
    pass


@pytest.fixture
def bus() -> InProcessEventBus:
    return InProcessEventBus()


def test_a_bus_is_an_event_bus(bus: InProcessEventBus) -> None:
    assert isinstance(bus, EventBus)


def test_handlers_run_in_order_on_the_calling_thread(bus: InProcessEventBus) -> None:
    ran: list[tuple[str, int]] = []
    bus.subscribe(Placed, lambda _: ran.append(("first", threading.get_ident())))
    bus.subscribe(Placed, lambda _: ran.append(("second", threading.get_ident())))

    result = bus.publish(Placed())

    assert ran == [("first", threading.get_ident()), ("second", threading.get_ident())]
    assert (result.ok, result.handled_count, result.remote, result.event_id) == (True, 2, "none", None)


def test_dispatch_is_by_exact_type(bus: InProcessEventBus) -> None:
    seen: list[object] = []
    bus.subscribe(Placed, seen.append)

    result = bus.publish(Special())

    assert seen == []
    assert result.handlers_invoked == ()


def test_subscribing_inside_a_handler_changes_the_next_publish(bus: InProcessEventBus) -> None:
    seen: list[object] = []
    bus.subscribe(Placed, lambda _: bus.subscribe(Placed, seen.append))

    bus.publish(Placed(1))
    during_the_first = list(seen)
    bus.publish(Placed(2))

    assert during_the_first == []
    assert seen == [Placed(2)]


def test_unsubscribing_inside_a_handler_changes_the_next_publish(bus: InProcessEventBus) -> None:
    seen: list[object] = []
    bus.subscribe(Placed, lambda _: bus.unsubscribe(Placed, seen.append) and None)
    bus.subscribe(Placed, seen.append)

    bus.publish(Placed(1))
    bus.publish(Placed(2))

    assert seen == [Placed(1)]


def test_a_handler_subscribed_twice_runs_twice_and_is_removed_once(bus: InProcessEventBus) -> None:
    seen: list[object] = []
    handler = seen.append
    bus.subscribe(Placed, handler)
    bus.subscribe(Placed, handler)

    twice = bus.publish(Placed())
    removed = [bus.unsubscribe(Placed, handler) for _ in range(3)]

    assert len(seen) == twice.handled_count == 2
    assert removed == [True, True, False]
    assert bus.publish(Placed()).handled_count == 0


def test_a_failing_handler_is_reported_and_the_others_run(bus: InProcessEventBus) -> None:
    seen: list[object] = []
    wrong = ValueError("wrong")

    def fails(_: object) -> None:
        raise wrong

    bus.subscribe(Placed, fails)
    bus.subscribe(Placed, seen.append)

    result = bus.publish(Placed())

    assert seen == [Placed()]
    assert result.errors == (HandlerFailure(fails, wrong),)
    assert str(result.errors[0]) == f"{fails!r} -> {wrong!r}"
    assert (result.ok, result.handled_count) == (False, 2)


def test_raise_if_errors_names_the_event_class() -> None:
    failed = PublishResult(Placed(), (), (HandlerFailure(print, ValueError("wrong")),))

    with pytest.raises(ExceptionGroup, match="Placed") as raised:
        failed.raise_if_errors()

    assert [type(error) for error in raised.value.exceptions] == [ValueError]
    PublishResult(Placed(), (), ()).raise_if_errors()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_passes_through(bus: InProcessEventBus, interruption: type[BaseException]) -> None:
    def interrupts(_: object) -> None:
        raise interruption

    bus.subscribe(Placed, interrupts)

    with pytest.raises(interruption):
        bus.publish(Placed())


def test_an_async_handler_ends_before_publish_returns(bus: InProcessEventBus) -> None:
    seen: list[str] = []

    async def handler(_: object) -> None:
        await asyncio.sleep(0.01)
        seen.append(VARIABLE.get())

    async def fails(_: object) -> None:
        raise ValueError("wrong")

    bus.subscribe(Placed, handler)
    bus.subscribe(Placed, fails)
    token = VARIABLE.set("reached")

    result = bus.publish(Placed())

    VARIABLE.reset(token)
    assert seen == ["reached"]
    assert [str(failure.error) for failure in result.errors] == ["wrong"]


def test_async_handlers_share_one_loop(bus: InProcessEventBus) -> None:
    loops: list[object] = []

    async def handler(_: object) -> None:
        loops.append(asyncio.get_running_loop())

    bus.subscribe(Placed, handler)

    bus.publish(Placed())
    bus.publish(Placed())

    assert loops[0] is loops[1]


def test_a_function_that_returns_a_coroutine_is_run_to_its_end(bus: InProcessEventBus) -> None:
    seen: list[object] = []

    async def handle(event: object) -> None:
        seen.append(event)

    bus.subscribe(Placed, lambda event: handle(event))

    bus.publish(Placed())

    assert seen == [Placed()]


def test_apublish_awaits_on_the_callers_loop_and_runs_others_in_threads(bus: InProcessEventBus) -> None:
    where: dict[str, Any] = {}

    async def handler(_: object) -> None:
        where["loop"], where["async variable"] = asyncio.get_running_loop(), VARIABLE.get()

    def plain(_: object) -> None:
        where["thread"], where["plain variable"] = threading.get_ident(), VARIABLE.get()
        raise StopIteration

    async def main() -> tuple[PublishResult[object], object]:
        VARIABLE.set("reached")
        return await bus.apublish(Placed()), asyncio.get_running_loop()

    bus.subscribe(Placed, handler)
    bus.subscribe(Placed, plain)

    result, loop = asyncio.run(main())

    assert where["loop"] is loop
    assert where["thread"] != threading.get_ident()
    assert (where["async variable"], where["plain variable"]) == ("reached", "reached")
    assert result.handled_count == 2
    assert [type(failure.error) for failure in result.errors] == [StopIteration]


@pytest.mark.parametrize("wrong", [None, 5, "Placed", Placed()])
def test_only_classes_can_be_subscribed_to(bus: InProcessEventBus, wrong: Any) -> None:
    with pytest.raises(TypeError, match="not a class"):
        bus.subscribe(wrong, print)


def test_only_what_can_be_called_is_a_handler(bus: InProcessEventBus) -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        bus.subscribe(Placed, "print")  # type: ignore[arg-type]  # the wrong input is the point


def test_subscribing_registers_the_type_where_there_is_a_registry() -> None:
    registry = EventRegistry()

    InProcessEventBus(registry=registry).subscribe(Placed, print)

    assert registry.type_of(registry.name_of(Placed)) is Placed


def test_publishing_inside_handlers_works_to_any_depth(bus: InProcessEventBus) -> None:
    depths: list[int] = []

    def deeper(event: Placed) -> None:
        depths.append(event.number)
        if event.number < 50:
            bus.publish(Placed(event.number + 1))

    bus.subscribe(Placed, deeper)

    bus.publish(Placed(1))

    assert depths == list(range(1, 51))


def test_publishing_inside_async_handlers_works_to_any_depth(bus: InProcessEventBus) -> None:
    depths: list[int] = []

    async def deeper(event: Placed) -> None:
        depths.append(event.number)
        if event.number < 5:
            bus.publish(Placed(event.number + 1))

    bus.subscribe(Placed, deeper)

    bus.publish(Placed(1))

    assert depths == [1, 2, 3, 4, 5]


def test_another_thread_subscribes_while_a_handler_runs(bus: InProcessEventBus) -> None:
    def subscribes_elsewhere(_: object) -> None:
        thread = threading.Thread(target=bus.subscribe, args=(Special, print))
        thread.start()
        thread.join(120)
        assert not thread.is_alive()

    bus.subscribe(Placed, subscribes_elsewhere)

    assert bus.publish(Placed()).ok


def test_publish_many_never_stops_at_a_failure(bus: InProcessEventBus) -> None:
    def fails_on_two(event: Placed) -> None:
        if event.number == 2:
            raise ValueError("two")

    bus.subscribe(Placed, fails_on_two)

    results = bus.publish_many(Placed(number) for number in (1, 2, 3))

    assert [result.ok for result in results] == [True, False, True]


def test_a_local_publish_has_no_context(bus: InProcessEventBus) -> None:
    contexts: list[object] = []
    bus.subscribe(Placed, lambda _: contexts.append(current_context()))

    bus.publish(Placed())

    assert contexts == [None]


@pytest.mark.parametrize("publishes", ["publish", "apublish"])
def test_an_async_handler_that_was_cancelled_has_failed_and_the_others_run(publishes: str) -> None:
    async def cancelled(_: object) -> None:
        raise asyncio.CancelledError("no more")

    seen: list[object] = []
    bus = InProcessEventBus()
    bus.subscribe(Placed, cancelled)
    bus.subscribe(Placed, seen.append)

    result = bus.publish(Placed()) if publishes == "publish" else asyncio.run(bus.apublish(Placed()))

    assert [type(failure.error) for failure in result.errors] == [concurrent.futures.CancelledError]
    assert seen == [Placed()]


@pytest.mark.parametrize("publishes", ["publish", "apublish"])
def test_a_failure_is_logged_with_the_handler_and_its_error_and_at_level_debug_with_its_traceback(
    bus: InProcessEventBus, caplog: pytest.LogCaptureFixture, publishes: str
) -> None:
    def place(event: Placed) -> None:
        raise ValueError("no such order, password=hunter2")

    bus.subscribe(Placed, place)
    with caplog.at_level(logging.DEBUG, logger="postroad.bus"):
        bus.publish(Placed()) if publishes == "publish" else asyncio.run(bus.apublish(Placed()))

    failed, traced = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert (failed["event"], failed["type"]) == ("bus_handler_failed", "Placed")
    assert failed["handler"].endswith("<locals>.place")
    assert failed["error"].startswith("ValueError: no such order")
    assert failed["error"].endswith("[test_local.py:place]")
    assert (traced["event"], traced["handler"]) == ("bus_handler_traceback", failed["handler"])
    assert "in place" in traced["traceback"]
    assert "hunter2" not in caplog.text
