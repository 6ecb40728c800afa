"""Batches in order behind a breaker: what is refused, what is held back, and who gives a probe's place back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.bus.conftest import MakeBus, failing
from tests.bus.proxies import Failing
from tests.bus.vocabulary import QUICK, Asked, Placed, Shipped, Stepped
from tests.waiting import eventually

from postroad import OutgoingMessage, Queue, SendResult, codec
from postroad.bus import (
    CircuitBreakerConfig,
    CircuitOpenError,
    NotSent,
    OutOfOrder,
    PublishResult,
    RemoteEventBus,
)
from postroad.bus.endpoints import Outlet
from postroad.errors import InvalidMessage, NotPermitted, OutcomeUnknown, Unavailable
from postroad.testing import FakeClock

BREAKER = CircuitBreakerConfig(failure_threshold=1, recovery_timeout_seconds=30.0)
BY_SESSION = replace(QUICK, message_group_id="${session_id}", local_dispatch=False, publish_retries=0)


def outcomes(results: Sequence[PublishResult[object]]) -> list[type | str]:
    """The error of each result, or where the event went."""
    return [type(result.errors[0].error) if result.errors else result.remote for result in results]


class Switch:
    """A transport that is down until it is switched on."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.on = False
        self.sent: list[int] = []

    def __call__(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        if not self.on:
            return failing(NotPermitted("no"))(messages)
        self.sent += [codec.decode(message.body).payload["number"] for message in messages]
        return self._queue.send(messages)


def test_an_open_breaker_refuses_the_first_of_a_group_and_holds_back_the_rest(
    make_bus: MakeBus, fifo_queue: Queue
) -> None:
    switch = Switch(fifo_queue)
    bus = make_bus(fifo_queue, BY_SESSION, send=switch, breaker=BREAKER)
    bus.publish(Stepped("a", 0))
    switch.on = True

    results = bus.publish_many([Stepped("a", 1), Stepped("a", 2), Stepped("b", 1)])

    assert outcomes(results) == [CircuitOpenError, NotSent, CircuitOpenError]
    assert switch.sent == []


def test_a_probe_goes_out_before_what_is_refused_behind_it_and_closes_the_breaker(
    make_bus: MakeBus, fifo_queue: Queue, clock: FakeClock
) -> None:
    switch = Switch(fifo_queue)
    bus = make_bus(fifo_queue, BY_SESSION, send=switch, breaker=BREAKER)
    bus.publish(Stepped("a", 0))
    switch.on = True
    clock.advance(30)

    results = bus.publish_many([Stepped("a", 1), Stepped("a", 2), Stepped("a", 3)])
    later = bus.publish(Stepped("a", 4))

    assert outcomes(results) == ["sent", CircuitOpenError, NotSent]
    assert (later.ok, switch.sent, bus.health().publish_breaker) == (True, [1, 4], "closed")


def test_an_interrupted_probe_gives_its_place_back(queue: Queue, clock: FakeClock) -> None:
    errors: list[BaseException] = [NotPermitted("no"), KeyboardInterrupt()]

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        if errors:
            raise errors.pop(0)
        return queue.send(messages)

    outlet = Outlet(name="work", send=send, longest=0)
    with RemoteEventBus(outlet=outlet, inlet=None, config=QUICK, clock=clock, breaker=BREAKER) as bus:
        bus.publish(Placed(1))
        clock.advance(30)
        with pytest.raises(KeyboardInterrupt):
            bus.publish(Placed(2))

        assert bus.publish(Placed(3)).ok


def test_all_events_that_a_later_one_of_their_group_overtook_are_out_of_order(
    make_bus: MakeBus, fifo_queue: Queue
) -> None:
    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        *early, last = messages
        return [*failing(Unavailable("busy"))(early), *fifo_queue.send([last])]

    bus = make_bus(fifo_queue, replace(BY_SESSION, publish_retries=3), send=send)

    results: list[Any] = bus.publish_many([Stepped("a", 1), Stepped("a", 2), Stepped("a", 3)])

    assert outcomes(results) == [OutOfOrder, OutOfOrder, "sent"]
    assert all(isinstance(result.errors[0].error.__cause__, Unavailable) for result in results[:2])


def test_what_is_sent_is_the_event_as_it_was_published_whatever_a_handler_does_to_it(
    make_bus: MakeBus, queue: Queue
) -> None:
    @dataclass
    class Changing:
        number: int

    def change(event: Changing) -> None:
        event.number = 2

    bus = make_bus(queue)
    bus.subscribe(Changing, change)

    bus.publish(Changing(1))

    assert codec.decode(queue.peek()[0].body).payload == {"number": 1}


def test_the_moment_of_publishing_is_not_the_events_own_moment(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    @dataclass(frozen=True)
    class Dated:
        created_at: datetime

    made = clock.now() - timedelta(days=3)

    make_bus(queue).publish(Dated(made))

    envelope = codec.decode(queue.peek()[0].body)
    assert (envelope.created_at, envelope.payload["created_at"]) == (clock.now(), "2029-12-29T00:00:00Z")


def test_what_an_attribute_cannot_carry_stays_in_the_body(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)

    result = bus.publish(Stepped("a\x00b"))

    message = queue.peek()[0]
    assert result.ok
    assert "SessionId" not in message.attributes
    assert codec.decode(message.body).session_id == "a\x00b"


def test_a_filter_is_about_exactly_its_types(make_bus: MakeBus, queue: Queue) -> None:
    @dataclass(frozen=True)
    class Special(Placed):
        pass

    config = replace(QUICK, event_type_blocklist=frozenset({Placed}))
    allowing = replace(QUICK, event_type_allowlist=frozenset({Placed}))

    assert make_bus(queue, config).publish(Special()).remote == "sent"
    assert make_bus(queue, allowing).publish(Special()).remote == "filtered"


def test_a_message_that_the_transport_refuses_says_nothing_about_the_transport(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, send=failing(InvalidMessage("not this one")), breaker=BREAKER)

    for _ in range(3):
        bus.publish(Placed())

    assert bus.health().publish_breaker == "closed"


def test_each_way_has_a_breaker_of_its_own(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, send=failing(NotPermitted("no")), breaker=BREAKER)

    bus.publish(Placed())

    assert (bus.health().publish_breaker, bus.health().receive_breaker) == ("open", "closed")


def test_polls_that_fail_open_the_receive_breaker(make_bus: MakeBus, queue: Queue) -> None:
    errors = [Unavailable("no network")] * 100
    bus = make_bus(Failing(queue, "receive", *errors), breaker=BREAKER)

    bus.start_receiver()

    eventually(lambda: bus.health().receive_breaker == "open")
    assert bus.health().publish_breaker == "closed"


def test_a_chain_of_events_keeps_the_correlation_of_its_first(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    bus.subscribe(Placed, lambda _: bus.publish(Shipped()))
    bus.subscribe(Shipped, lambda _: bus.publish(Asked()))

    first = bus.publish(Placed())

    third, second, _ = (codec.decode(message.body) for message in queue.peek())
    assert third.correlation_id == second.correlation_id == str(first.event_id)
    assert third.causation_id == str(second.event_id)


def test_an_event_published_in_a_handler_belongs_to_the_handled_ones_trace(make_bus: MakeBus, queue: Queue) -> None:
    bus, trace = make_bus(queue), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bus.subscribe(Placed, lambda _: bus.publish(Shipped()))
    queue.send([OutgoingMessage(codec.encode(codec.wrap(Placed(), publisher_id="elsewhere", traceparent=trace)))])

    bus.receive_once()

    (caused,) = queue.peek()
    assert codec.decode(caused.body).traceparent == trace
    assert caused.attributes["TraceParent"] == trace


@pytest.mark.parametrize("last", [Unavailable("busy"), NotPermitted("no")])
def test_a_failure_after_an_attempt_without_an_answer_is_unknown(
    make_bus: MakeBus, queue: Queue, last: Exception
) -> None:
    errors = iter([OutcomeUnknown("timeout")])

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        raise next(errors, last)

    result = make_bus(queue, send=send).publish(Placed())

    assert (result.ok, result.remote) == (False, "unknown")
    assert "an earlier attempt may have been sent" in str(result.errors[0].error)
