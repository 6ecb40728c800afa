"""What follows for a push from what its providers said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad.notifications import TokenResult
from postroad.notifications.consumers import RetryPolicy, decide_push, rejected
from postroad.notifications.push import Attempt
from postroad.receiving import Ack, Defer, Outcome, Reject, Retry

NOW = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
RETRIES = RetryPolicy(delays=(60, 300), max_receives=3, retention=345_600)


def judged(
    attempt: Attempt,
    *,
    receives: int = 1,
    chance: float = 0.5,
    age: timedelta = timedelta(0),
    retries: RetryPolicy = RETRIES,
) -> Outcome:
    return decide_push(attempt, retries, receive_count=receives, made_at=NOW - age, now=NOW, chance=chance)


def failing(outcome: str = "retry", *, retry_after: float | None = None, waits: tuple[float, ...] = ()) -> Attempt:
    result = TokenResult("t", outcome, 503, "Busy", retry_after=retry_after)  # type: ignore[arg-type]  # an outcome
    return Attempt(failures=[("apns", result)], waits=list(waits))


@pytest.mark.parametrize(
    ("receives", "chance", "after"), [(1, 0.0, 48.0), (1, 0.5, 60.0), (1, 1.0, 72.0), (2, 0.5, 300.0)]
)
def test_a_failed_push_rests_for_its_delay_more_or_less_by_a_fifth(receives: int, chance: float, after: float) -> None:
    verdict = judged(failing(), receives=receives, chance=chance)

    assert isinstance(verdict, Retry)
    assert verdict.after == pytest.approx(after)


@pytest.mark.parametrize(("asked", "after"), [(30.0, 60.0), (90.0, 90.0), (1e9, 43_200.0)])
def test_a_provider_that_asks_for_more_time_gets_it(asked: float, after: float) -> None:
    verdict = judged(failing(retry_after=asked))

    assert isinstance(verdict, Retry)
    assert verdict.after == pytest.approx(after)


def test_the_third_failure_is_the_last_also_where_the_queue_would_go_on() -> None:
    patient = RetryPolicy(delays=(60, 300), max_receives=None, retention=345_600)

    assert isinstance(judged(failing(), receives=2, retries=patient), Retry)
    assert judged(failing(), receives=3, retries=patient) == rejected(
        "retries_exhausted", "PushFailed: apns answered 503 (Busy), 1 token open"
    )


def test_a_push_waits_for_the_mending_of_our_own_key_and_is_no_dead_letter_before_it_is_stale() -> None:
    mixed = failing("auth")
    mixed.failures += failing("permanent").failures

    assert judged(failing("auth"), receives=3) == Defer(60.0)
    assert judged(failing("auth", waits=(300.0,)), receives=3) == Defer(300.0)
    assert judged(mixed, receives=3) == Defer(60.0)
    assert isinstance(judged(failing("auth"), age=timedelta(days=4)), Reject)


@pytest.mark.parametrize(("wait", "delay"), [(0.2, 1.0), (29.5, 29.5), (5_000.0, 900.0)])
def test_a_push_waits_for_its_provider_within_what_a_queue_can_delay(wait: float, delay: float) -> None:
    assert judged(Attempt(waits=[wait])) == Defer(delay)
    assert judged(failing(waits=(wait,)), receives=3) == Defer(delay)


@pytest.mark.parametrize(
    ("retention", "age", "stale"),
    [(345_600, 341_000, False), (345_600, 342_100, True), (600, 299, False), (600, 301, True)],
)
def test_a_push_is_stale_an_hour_before_its_queue_would_forget_it(retention: float, age: float, stale: bool) -> None:
    patience = RetryPolicy(delays=(60,), max_receives=3, retention=retention)

    verdict = judged(Attempt(waits=[30.0]), age=timedelta(seconds=age), retries=patience)

    assert isinstance(verdict, Reject if stale else Defer)


def test_a_push_that_one_device_refuses_for_good_waits_until_the_others_have_it() -> None:
    stopped = failing("permanent")
    stopped.untried = 1

    assert judged(failing("permanent", waits=(30.0,))) == Defer(30.0)
    assert judged(stopped) == Retry(0.0, "WorkerStopped: the worker stops", label="interrupted")
    assert judged(failing("permanent")) == rejected("permanent", "PushFailed: apns answered 503 (Busy), 1 token open")


def test_an_old_push_whose_provider_answers_is_done() -> None:
    assert judged(Attempt(sent=1), age=timedelta(days=400)) == Ack(label="pushed")


def test_devices_left_out_by_a_stop_bring_the_push_back_at_once() -> None:
    verdict = judged(Attempt(untried=3))

    assert isinstance(verdict, Retry)
    assert verdict.after == 0.0
