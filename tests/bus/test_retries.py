"""When a failed send is tried again, and how long a receiver waits: decisions only."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from postroad.backoff import Backoff
from postroad.bus import BusConfig
from postroad.bus.sender import GiveUp, RetryAfter, decide
from postroad.errors import (
    CircuitOpenError,
    InvalidMessage,
    NotPermitted,
    OutcomeUnknown,
    PostroadError,
    QueueNotFound,
    Unavailable,
)

CONFIG = BusConfig(publish_retries=3, publish_retry_delay_seconds=0.5)


def after(attempt: int, error: PostroadError, *, left: float = 60.0, chance: float = 1.0) -> RetryAfter | GiveUp:
    return decide(attempt, error, left=left, config=CONFIG, chance=chance)


def test_the_pause_doubles_with_each_attempt() -> None:
    pauses = [after(attempt, Unavailable("busy")) for attempt in (1, 2, 3)]

    assert pauses == [RetryAfter(0.5), RetryAfter(1.0), RetryAfter(2.0)]


def test_chance_shortens_the_pause_by_half_at_most() -> None:
    assert after(3, Unavailable("busy"), chance=0.0) == RetryAfter(1.0)


def test_one_try_and_as_many_retries_as_configured() -> None:
    assert after(4, Unavailable("busy")) == GiveUp("failed")
    assert decide(1, Unavailable("busy"), left=60, config=replace(CONFIG, publish_retries=0), chance=1.0) == GiveUp(
        "failed"
    )


@pytest.mark.parametrize("left", [0.0, 0.49, 0.5])
def test_a_retry_that_could_not_start_within_the_budget_is_not_made(left: float) -> None:
    assert after(1, Unavailable("busy"), left=left) == GiveUp("failed")


@pytest.mark.parametrize(
    "error", [NotPermitted("no"), InvalidMessage("bad"), QueueNotFound("gone"), CircuitOpenError(retry_after=1.0)]
)
def test_what_another_try_cannot_mend_is_given_up(error: PostroadError) -> None:
    assert after(1, error) == GiveUp("failed")


def test_an_open_outcome_stays_unknown_when_it_is_given_up() -> None:
    assert after(1, OutcomeUnknown("timeout")) == RetryAfter(0.5)
    assert after(4, OutcomeUnknown("timeout")) == GiveUp("unknown")


def test_a_receiver_waits_from_half_a_second_doubled_to_thirty_and_anew_after_a_success() -> None:
    backoff = Backoff()

    longest = [backoff.next(1.0) for _ in range(9)]
    shortest = backoff.next(0.0)
    backoff.reset()

    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert (shortest, backoff.next(1.0)) == (15.0, 0.5)


def test_pauses_leave_the_random_numbers_of_the_program_alone() -> None:
    random.seed(7)
    before = random.getstate()

    pause = Backoff().next()

    assert 0.25 <= pause <= 0.5
    assert random.getstate() == before
