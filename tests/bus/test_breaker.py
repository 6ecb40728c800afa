"""Breakers: after too many failures nothing is tried for a while, then a few probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed
from tests.waiting import eventually

from postroad import Queue, SendResult
from postroad.bus import CircuitBreakerConfig, CircuitOpenError
from postroad.errors import ConfigurationError, NotPermitted
from postroad.receiving import CircuitBreaker
from postroad.testing import FakeClock

BREAKER = CircuitBreakerConfig(failure_threshold=2, recovery_timeout_seconds=30.0)


@pytest.fixture
def breaker(clock: FakeClock) -> CircuitBreaker:
    return CircuitBreaker(BREAKER, clock.monotonic)


def test_the_defaults_are_five_failures_thirty_seconds_and_one_probe() -> None:
    assert CircuitBreakerConfig() == CircuitBreakerConfig(
        failure_threshold=5, recovery_timeout_seconds=30.0, half_open_requests=1
    )


def test_it_opens_after_failures_in_a_row(breaker: CircuitBreaker) -> None:
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    before = breaker.state
    breaker.failed()

    assert (before, breaker.state) == ("closed", "open")
    assert breaker.admit() == 30.0


def test_after_the_recovery_time_a_probe_passes_and_closes_it(breaker: CircuitBreaker, clock: FakeClock) -> None:
    breaker.failed()
    breaker.failed()
    clock.advance(30)

    first, second = breaker.admit(), breaker.admit()
    state = breaker.state
    breaker.succeeded()

    assert (first, state, breaker.state) == (None, "half_open", "closed")
    assert second is not None


def test_a_failed_probe_opens_it_again(breaker: CircuitBreaker, clock: FakeClock) -> None:
    breaker.failed()
    breaker.failed()
    clock.advance(30)
    breaker.admit()

    breaker.failed()

    assert (breaker.state, breaker.admit()) == ("open", 30.0)


def test_a_probe_that_says_nothing_gives_its_place_back(breaker: CircuitBreaker, clock: FakeClock) -> None:
    breaker.failed()
    breaker.failed()
    clock.advance(30)
    breaker.admit()

    breaker.undecided()

    assert breaker.admit() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("failure_threshold", 0), ("half_open_requests", 0), ("recovery_timeout_seconds", float("nan"))],
)
def test_a_breaker_that_cannot_work_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        CircuitBreakerConfig(**{field: value})


def test_an_open_publish_breaker_runs_handlers_and_makes_no_request(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    requests: list[int] = []
    down = [True]

    def send(messages: Any) -> list[SendResult]:
        requests.append(len(messages))
        return [SendResult(ok=False, error=NotPermitted("no"))] if down[0] else queue.send(messages)

    seen: list[object] = []
    bus = make_bus(queue, send=send, breaker=BREAKER)
    bus.subscribe(Placed, seen.append)
    bus.publish(Placed(1))
    bus.publish(Placed(2))

    refused = bus.publish(Placed(3))
    during = len(requests)
    down[0] = False
    clock.advance(30)
    probe = bus.publish(Placed(4))

    error = refused.errors[0].error
    assert isinstance(error, CircuitOpenError)
    assert error.retry_after == 30.0
    assert bus.name in str(error)
    assert "30.0 s" in str(error)
    assert (during, len(seen), refused.remote) == (2, 4, "failed")
    assert (probe.ok, bus.health().publish_breaker) == (True, "closed")


def test_bad_events_do_not_open_the_breaker(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, breaker=BREAKER)

    for _ in range(5):
        bus.publish(None)

    assert bus.health().publish_breaker == "closed"
    assert bus.publish(Placed()).ok


def test_without_a_breaker_every_publish_is_tried(make_bus: MakeBus, queue: Queue) -> None:
    requests: list[int] = []

    def send(messages: Any) -> list[SendResult]:
        requests.append(len(messages))
        return [SendResult(ok=False, error=NotPermitted("no"))]

    bus = make_bus(queue, send=send)

    for _ in range(20):
        bus.publish(Placed())

    assert len(requests) == 20


def test_an_open_receive_breaker_burns_no_receive_counts(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    broken = [True]
    calls: list[int] = []

    def handler(event: Placed) -> None:
        calls.append(event.number)
        if broken[0]:
            raise ValueError("broken")

    asked: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(queue, name)

        def receive(self, **options: Any) -> Any:
            asked.append(options["max_messages"])
            return queue.receive(**options)

    config = replace(QUICK, max_receives=50, max_messages_per_poll=2)
    bus = make_bus(Watched(), config, breaker=BREAKER)
    bus.subscribe(Placed, handler)
    make_bus(queue).publish_many([Placed(1), Placed(2)])
    bus.start_receiver()
    eventually(lambda: bus.health().receive_breaker == "open")

    polls = len(asked)
    bus.receive_once()
    counts = [message.receive_count for message in queue.peek()]
    broken[0] = False
    clock.advance(30)

    eventually(lambda: bus.health().handled == 2)
    assert (polls, counts) == (1, [1, 1])
    assert asked[1] == 1
    assert bus.health().receive_breaker == "closed"
