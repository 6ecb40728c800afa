"""What `on` offers each handler: several types, their subclasses and a name."""

from __future__ import annotations

import contextvars
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed, Shipped
from tests.waiting import eventually

import postroad
from postroad import Backend, Queue
from postroad.errors import ConfigurationError
from postroad.inbox import Inbox

REMOTE = replace(QUICK, local_dispatch=False, max_receives=3)


@dataclass(frozen=True)
class Changed:
    """Not declared as an event itself; those that derive from it are."""

    number: int = 1


@postroad.event
class PriceChanged(Changed):
    price: int = 0


@postroad.event
class NameChanged(Changed):
    name: str = ""


class Auditable:
    """A plain class that events derive from."""


@postroad.event
class LoggedIn(Auditable):
    user: str = "ann"


class Countable(ABC):
    @abstractmethod
    def count(self) -> int: ...


@postroad.event
class Counted(Countable):
    number: int = 3

    def count(self) -> int:
        return self.number


class Undeclared:
    order_id: str


def test_one_handler_takes_several_types(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, Shipped)
    def note(event: Placed | Shipped) -> None:
        seen.append(event)

    bus.publish_many([Placed(1), Shipped(2)])
    bus.receive_once()

    assert seen == [Placed(1), Shipped(2)]


def test_a_type_that_is_named_twice_is_handled_once(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, REMOTE)
    bus.on(Changed, PriceChanged, PriceChanged)(seen.append)

    bus.publish(PriceChanged())
    bus.receive_once()

    assert seen == [PriceChanged()]


@pytest.mark.parametrize("base", [Changed, Auditable, Countable])
def test_on_takes_the_registered_subclasses_and_subscribe_does_not(
    make_bus: MakeBus, queue: Queue, base: type[Any]
) -> None:
    by_on: list[object] = []
    exactly: list[object] = []
    bus = make_bus(queue, REMOTE)
    bus.on(base)(by_on.append)
    if base is Changed:
        bus.subscribe(base, exactly.append)
    bus.publish_many([PriceChanged(price=2), NameChanged(name="b"), LoggedIn(), Counted()])

    bus.receive_once()

    events: list[Any] = [PriceChanged(price=2), NameChanged(name="b"), LoggedIn(), Counted()]
    assert by_on == [each for each in events if isinstance(each, base)]
    assert exactly == []


def test_handlers_of_a_base_and_of_its_subclass_run_in_the_order_of_their_subscription(
    make_bus: MakeBus, queue: Queue
) -> None:
    order: list[str] = []
    bus = make_bus(queue, REMOTE)
    bus.on(Changed)(lambda event: order.append("base"))
    bus.on(PriceChanged)(lambda event: order.append("subclass"))
    bus.publish(PriceChanged())

    bus.receive_once()

    assert order == ["base", "subclass"]


def test_a_group_receives_the_subclasses_that_its_handlers_take(backend: Backend) -> None:
    seen: list[object] = []
    bus = backend.bus("orders", "audit", config=QUICK)
    bus.on(Changed)(seen.append)
    bus.start_receiver()

    backend.bus("orders", config=QUICK).publish(NameChanged(name="b"))

    eventually(lambda: seen)
    assert seen == [NameChanged(name="b")]


def test_a_handler_of_a_base_that_is_added_to_a_running_bus_takes_its_subclasses(backend: Backend) -> None:
    seen: list[object] = []
    bus = backend.bus("orders", "audit", config=QUICK)
    bus.start_receiver()

    bus.on(Changed)(seen.append)
    backend.bus("orders", config=QUICK).publish(PriceChanged())

    eventually(lambda: seen)
    assert seen == [PriceChanged()]


def test_a_handler_that_was_unsubscribed_from_a_base_gets_none_of_its_subclasses(
    make_bus: MakeBus, queue: Queue
) -> None:
    seen: list[object] = []
    bus = make_bus(queue, REMOTE)
    bus.on(Changed)(seen.append)
    bus.on(PriceChanged)(lambda event: None)
    bus.receive_once()

    assert bus.unsubscribe(Changed, seen.append)
    bus.publish(PriceChanged())
    bus.receive_once()

    assert seen == []


def test_a_class_that_nobody_declared_as_an_event_is_refused_at_the_start(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, REMOTE)
    bus.on(Undeclared)(lambda event: None)

    with pytest.raises(ConfigurationError, match="Undeclared is not an event") as caught:
        bus.start_receiver()

    assert caught.value.field == "event_types"
    assert "@postroad.event" in caught.value.remedy
    assert not bus.health().running


def test_a_running_bus_refuses_such_a_class_at_once(backend: Backend) -> None:
    bus = backend.bus("orders", "billing", config=QUICK)
    bus.start_receiver()

    with pytest.raises(ConfigurationError, match="Undeclared is not an event"):
        bus.on(Undeclared)(lambda event: None)

    assert bus.publish(Undeclared()).handlers_invoked == ()


def test_a_class_that_is_registered_between_two_polls_is_taken_by_the_next(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, REMOTE)
    bus.on(Changed)(seen.append)
    bus.receive_once()

    @postroad.event
    class ColourChanged(Changed):
        colour: str = "red"

    bus.publish(ColourChanged())
    bus.receive_once()

    assert seen == [ColourChanged()]


def test_a_declared_bus_takes_an_abstract_base_before_and_after_it_is_bound(backend: Backend) -> None:
    seen: list[object] = []
    bus = postroad.Bus("orders", group="audit", config=QUICK)
    bus.on(Countable)(seen.append)  # type: ignore[type-abstract]  # its subclasses are handled

    bus.bind(backend)
    bus.start_receiver()
    bus.publish(Counted())

    eventually(lambda: seen)
    assert seen == [Counted()]


class Pair(NamedTuple):
    one: int


class Shaped(TypedDict):
    one: int


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize("wrong", [(), (int,), (Pair,), (Shaped,), (Colour,), (print,), (None,), (Placed, "Shipped")])
def test_what_cannot_be_an_event_is_refused_by_on(make_bus: MakeBus, queue: Queue, wrong: tuple[Any, ...]) -> None:
    bus = make_bus(queue, REMOTE)

    with pytest.raises(ConfigurationError, match="event_types") as caught:
        bus.on(*wrong)

    assert caught.value.field == "event_types"


def generating(event: Placed) -> Iterator[int]:
    yield 1


def test_what_cannot_be_called_is_refused_and_not_registered(backend: Backend) -> None:
    wrong: Any = None
    bus = backend.bus("orders", "billing")

    for subscribe in (bus.on(Placed), bus.on_any):
        with pytest.raises(ConfigurationError, match="handler: None cannot be called") as caught:
            subscribe(wrong)
        assert caught.value.field == "handler"
    assert not bus.has_handlers


@pytest.mark.parametrize("handler", [lambda: None, lambda event, other: None, lambda event, *, other: None])
def test_what_does_not_take_the_event_alone_is_refused_and_not_registered(backend: Backend, handler: Any) -> None:
    bus = backend.bus("orders", "billing")

    for subscribe in (bus.on(Placed), bus.on_any):
        with pytest.raises(ConfigurationError, match="cannot be called with the event alone") as caught:
            subscribe(handler)
        assert caught.value.field == "handler"
    assert not bus.has_handlers


def test_with_an_inbox_a_handler_has_to_take_the_connection_too(backend: Backend, inbox: Inbox) -> None:
    bus = backend.bus("orders", "billing", inbox=inbox)

    with pytest.raises(ConfigurationError, match="cannot be called with the event and the connection"):
        bus.on(Placed)(lambda event: None)

    assert not bus.has_handlers


def test_a_decorator_may_give_its_handler_more_than_the_event(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)
    seen: list[tuple[Placed, str]] = []

    def with_session(handler: Callable[[Placed, str], None]) -> Callable[[Placed], None]:
        @functools.wraps(handler)
        def called(event: Placed) -> None:
            handler(event, "session")

        return called

    @bus.on(Placed)
    @with_session
    def bill(event: Placed, session: str) -> None:
        seen.append((event, session))

    bus.publish(Placed()).raise_if_errors()

    assert seen == [(Placed(), "session")]


def test_a_generator_is_refused_as_a_handler(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, REMOTE)

    with pytest.raises(ConfigurationError, match="generator"):
        bus.on(Placed)(generating)

    assert bus.publish(Placed()).handlers_invoked == ()


def test_two_handlers_of_one_name_are_refused_and_the_second_is_not_registered(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)
    bus.on(Placed, name="bill")(lambda event: None)

    with pytest.raises(ConfigurationError, match="name: 'bill'") as caught:
        bus.on(Shipped, name="bill")(lambda event: None)

    assert caught.value.field == "name"
    assert "own name" in caught.value.remedy
    assert bus.publish(Shipped()).handlers_invoked == ()


def test_two_functions_that_were_both_called_bill_are_refused(backend: Backend) -> None:
    bus = backend.bus("orders", config=QUICK)

    @bus.on(Placed)
    def bill(event: Placed) -> None: ...

    with pytest.raises(ConfigurationError, match=r"name: .*bill"):

        @bus.on(Shipped)
        def bill(event: Shipped) -> None: ...  # type: ignore[misc]  # that is the mistake


def test_one_function_may_be_subscribed_twice_under_one_name(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)

    def bill(event: object) -> None: ...

    bus.on(Placed, name="bill")(bill)
    bus.on(Shipped, name="bill")(bill)

    assert bus.publish(Shipped()).handlers_invoked == (bill,)


def test_functions_that_the_same_lines_make_may_share_their_name(backend: Backend) -> None:
    bus = backend.bus("orders", local=True, config=QUICK)

    def noting(seen: list[object]) -> Callable[[object], None]:
        def note(event: object) -> None:
            seen.append(event)

        return note

    one, other = list[object](), list[object]()
    bus.on(Placed)(noting(one))
    bus.on(Placed)(noting(other))
    bus.publish(Placed())

    assert one == other == [Placed()]


def test_the_log_calls_a_handler_by_its_name(make_bus: MakeBus, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, name="bill")
    def charge(event: Placed) -> None:
        raise ValueError("no such order")

    bus.publish(Placed())
    with caplog.at_level(logging.WARNING, "postroad.bus"):
        bus.receive_once()

    assert "handler=bill" in caplog.text


def test_a_handler_for_every_event_takes_all_that_can_be_decoded(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, REMOTE)

    @bus.on_any
    def audit(event: object) -> None:
        seen.append(event)

    bus.publish_many([Placed(1), Shipped(2), PriceChanged()])
    bus.receive_once()

    assert seen == [Placed(1), Shipped(2), PriceChanged()]


def test_context_variables_reach_a_handler_with_a_timeout(backend: Backend) -> None:
    variable = contextvars.ContextVar("variable", default="")
    seen: list[str] = []
    bus = backend.bus("orders", local=True, config=QUICK)

    @bus.on(Placed, timeout=5)
    async def note(event: Placed) -> None:
        seen.append(variable.get())

    variable.set("theirs")
    bus.publish(Placed())

    assert seen == ["theirs"]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_whose_text_cannot_be_made_is_a_failure_of_its_handler_alone(
    make_bus: MakeBus, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[object] = []
    bus = make_bus(queue, replace(REMOTE, max_receives=2))

    @bus.on(Placed, name="fails")
    def fail(event: Placed) -> None:
        raise Unspeakable

    bus.on(Placed, name="works")(calls.append)
    bus.publish(Placed())
    bus.receive_once()
    bus.receive_once()

    assert len(calls) == 1
    assert "Unspeakable: (its text cannot be shown: __str__ raises RuntimeError) [test_handlers.py:fail]" in caplog.text
    assert "handler=fails" in caplog.text
