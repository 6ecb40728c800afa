"""Events that cannot travel: their local handlers run, nothing is sent, and the failure says why."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Anything, Placed

from postroad import Queue, SendResult
from postroad.bus import RemoteEventBus
from postroad.bus.endpoints import Outlet
from postroad.errors import InvalidEvent, InvalidMessage, MessageTooLarge


class Plain:
    pass


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Refused:
    """A transport that must not be asked."""

    def __init__(self) -> None:
        self.requests = 0

    def __call__(self, messages: Any) -> list[SendResult]:
        self.requests += 1
        return [SendResult(ok=True) for _ in messages]


@pytest.mark.parametrize("event", [None, 5, Placed, Plain()], ids=["None", "int", "class", "plain"])
def test_what_is_no_event_reaches_local_handlers_and_no_transport(make_bus: MakeBus, queue: Queue, event: Any) -> None:
    seen: list[object] = []
    transport = Refused()
    bus = make_bus(queue, send=transport)
    bus.subscribe(type(event), seen.append)

    result = bus.publish(event)

    (failure,) = result.errors
    assert isinstance(failure.error, InvalidMessage)
    assert (event if isinstance(event, type) else type(event)).__name__ in str(failure.error)
    assert (seen, result.remote, result.event_id, transport.requests) == ([event], "failed", None, 0)


@pytest.mark.parametrize(
    "value", [object(), float("nan"), float("inf"), nested(70), "\ud800"], ids=["object", "nan", "inf", "deep", "text"]
)
def test_a_field_that_cannot_travel_is_named(make_bus: MakeBus, queue: Queue, value: Any) -> None:
    transport = Refused()
    bus = make_bus(queue, send=transport)

    result = bus.publish(Anything(value))

    error = result.errors[0].error
    assert isinstance(error, InvalidMessage)
    assert "value" in str(error.field)
    assert transport.requests == 0


def test_a_field_of_the_wrong_type_is_refused_when_the_event_is_published(make_bus: MakeBus, queue: Queue) -> None:
    transport = Refused()
    bus = make_bus(queue, send=transport)

    result = bus.publish(Placed(number="seven"))  # type: ignore[arg-type]  # this is the mistake

    (failure,) = result.errors
    assert isinstance(failure.error, InvalidEvent)
    assert (str(failure.error), failure.error.field) == (
        "payload.number: Expected `int`, got `str`",
        "payload.number",
    )
    assert "annotation" in failure.error.remedy
    assert (result.remote, transport.requests) == ("failed", 0)


def test_control_characters_travel(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    event = Anything("\x00\x01\x1b\x7f\u2028")
    make_bus(queue).publish(event)
    receiver = make_bus(queue)
    receiver.subscribe(Anything, seen.append)

    receiver.receive_once()

    assert seen == [event]


def test_a_huge_event_without_blobs_is_refused_before_any_request() -> None:
    transport = Refused()
    bus = RemoteEventBus(outlet=Outlet(name="work", send=transport, limit=1_048_576), inlet=None, config=QUICK)

    result = bus.publish(Anything("x" * 2_000_000))

    bus.close()
    assert isinstance(result.errors[0].error, MessageTooLarge)
    assert transport.requests == 0


@pytest.mark.parametrize("above", [0, 1])
def test_attributes_count_towards_the_limit(queue: Queue, above: int) -> None:
    event = Anything("x" * 1_000)
    with RemoteEventBus(outlet=Outlet(name="work", send=queue.send), inlet=None, config=QUICK) as unlimited:
        unlimited.publish(event)
    (message,) = queue.peek()
    attributes = sum(len(name) + len("String") + len(value) for name, value in message.attributes.items())
    limit = len(message.body) + attributes - above

    with RemoteEventBus(outlet=Outlet(name="work", send=queue.send, limit=limit), inlet=None, config=QUICK) as bus:
        result = bus.publish(event)

    assert (result.ok, queue.stats().visible) == ((True, 2) if above == 0 else (False, 1))
