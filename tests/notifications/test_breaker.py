"""Breakers of providers: five failures in a row, half a minute, doubled up to five, one probe at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from postroad.errors import ConfigurationError
from postroad.notifications.push import ProviderBreaker
from postroad.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def breaker(clock: FakeClock) -> ProviderBreaker:
    return ProviderBreaker(monotonic=clock.monotonic)


def fail(breaker: ProviderBreaker, times: int = 5) -> None:
    for _ in range(times):
        breaker.failed()


def test_five_failures_in_a_row_open_it_for_thirty_seconds(breaker: ProviderBreaker, clock: FakeClock) -> None:
    fail(breaker, 4)
    breaker.succeeded()
    fail(breaker, 4)
    before = breaker.state
    breaker.failed()
    clock.advance(10)

    assert (before, breaker.state) == ("closed", "open")
    assert (breaker.admit(), breaker.pause()) == (20.0, 20.0)


def test_each_failed_probe_doubles_the_time_up_to_five_minutes(breaker: ProviderBreaker, clock: FakeClock) -> None:
    fail(breaker)
    waits = []
    for _ in range(6):
        waits.append(breaker.pause())
        clock.advance(waits[-1])
        assert breaker.admit() is None
        breaker.failed()

    assert waits == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]


def test_after_an_answer_it_starts_again_with_thirty_seconds(breaker: ProviderBreaker, clock: FakeClock) -> None:
    fail(breaker)
    clock.advance(30)
    breaker.admit()
    breaker.failed()
    clock.advance(60)
    breaker.admit()
    breaker.succeeded()
    closed = breaker.state
    fail(breaker)

    assert (closed, breaker.pause()) == ("closed", 30.0)


def test_one_probe_passes_when_the_time_ends_however_many_threads_ask(
    breaker: ProviderBreaker, clock: FakeClock
) -> None:
    fail(breaker)
    clock.advance(30)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: breaker.admit(), range(32)))

    assert answers.count(None) == 1
    assert breaker.state == "half_open"


def test_a_probe_that_was_not_sent_gives_its_place_back(breaker: ProviderBreaker, clock: FakeClock) -> None:
    fail(breaker)
    clock.advance(30)

    breaker.admit()
    taken = breaker.admit()
    breaker.undecided()

    assert taken is not None
    assert breaker.admit() is None


def test_failures_of_what_was_under_way_do_not_lengthen_the_time(breaker: ProviderBreaker) -> None:
    fail(breaker, 12)

    assert breaker.pause() == 30.0


@pytest.mark.parametrize(
    ("field", "value"), [("breaker_failures", 0), ("breaker_failures", 1.5), ("breaker_seconds", float("nan"))]
)
def test_what_no_breaker_can_count_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: ") as refused:
        ProviderBreaker(**{field.removeprefix("breaker_"): value})

    assert refused.value.field == field
