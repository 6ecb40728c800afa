from __future__ import annotations

from typing import Any, cast

import pytest

from postroad.errors import (
    CircuitOpenError,
    ConfigurationError,
    HeldBack,
    InvalidMessage,
    MessageTooLarge,
    NotPermitted,
    OutcomeUnknown,
    QueueNotFound,
    RowRejected,
    StorageFull,
    TargetUnavailable,
    Throttled,
    TopicNotFound,
    Unavailable,
)
from postroad.outbox.dispatching.decisions import Target
from postroad.outbox.dispatching.publisher import SENT, Rejected, TargetDown, Tried, Untried, described, verdict_of
from postroad.outbox.dispatching.store import DispatchStore


@pytest.mark.parametrize(
    "error",
    [
        TargetUnavailable("x"),
        TopicNotFound("x"),
        QueueNotFound("x"),
        NotPermitted("x"),
        Throttled("x"),
        CircuitOpenError("x"),
        ConfigurationError("x"),
        StorageFull("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_the_targets_fault_is_not_the_rows(error: Exception) -> None:
    assert verdict_of(error) == TargetDown(f"{type(error).__name__}: x", getattr(error, "retry_after", None) or None)


@pytest.mark.parametrize(
    "error",
    [Unavailable("x"), OutcomeUnknown("x"), TimeoutError("x"), ConnectionResetError("x"), ValueError("x")],
    ids=lambda error: type(error).__name__,
)
def test_an_unknown_outcome_is_tried_again(error: Exception) -> None:
    assert verdict_of(error) == Tried(f"{type(error).__name__}: x")


def test_a_message_that_can_never_go_is_rejected_with_its_class() -> None:
    assert verdict_of(RowRejected("no")) == Rejected("rejected: no")
    assert verdict_of(InvalidMessage("no")) == Rejected("rejected: no")
    assert verdict_of(MessageTooLarge("no")) == Rejected("too-large: no")


def test_a_message_held_back_by_the_publisher_was_not_tried() -> None:
    assert verdict_of(HeldBack("behind")) == Untried()


def test_an_error_is_described_in_one_short_line() -> None:
    told = described(ValueError("a\nb\x00c" + "d" * 1_000))

    assert told.startswith("ValueError: abcd")
    assert len(told) == 500


@pytest.mark.parametrize(
    ("asked", "pause"),
    [(2, 2.0), (0.5, 0.5), (0, None), (-1, None), (float("nan"), None), (float("inf"), None), ("5", None)],
)
def test_a_target_may_ask_for_a_pause_that_is_a_time(asked: Any, pause: float | None) -> None:
    verdict = verdict_of(TargetUnavailable("busy", retry_after=asked))

    assert isinstance(verdict, TargetDown)
    assert verdict.retry_after == pause


def test_secrets_in_an_error_are_hidden() -> None:
    told = described(ConnectionError("postgresql://app:s3cret@db/app refused Authorization: Bearer abcdef123456"))

    assert told == "ConnectionError: postgresql://***@db/app refused Authorization: Bearer ***"


def _a_target() -> Target:
    """A target whose pauses begin with 5 seconds, and whose errors nobody stores."""
    return Target(cast(DispatchStore, None), lambda *_, **__: None, first_pause=5.0)


def _pause(target: Target, now: float, asked: float | None = None) -> float:
    """Let the target refuse everything, and return how long it pauses from then on."""
    assert target.observe([TargetDown("gone", asked)], now)
    return target.probes_at - now


def test_a_pause_doubles_up_to_a_minute_and_ends_with_the_first_answer() -> None:
    target = _a_target()

    taken = [_pause(target, target.probes_at) for _ in range(6)]

    assert taken == [5, 10, 20, 40, 60, 60]
    assert not target.observe([SENT], target.probes_at)
    assert not target.paused
    assert _pause(target, 1_000.0) == 5


def test_during_a_pause_nothing_is_claimed_and_after_it_one_message_probes() -> None:
    target = _a_target()
    _pause(target, 100.0)

    assert target.allows(104.9, 50) == 0
    assert target.allows(105.0, 50) == 1
    target.observe([SENT], 105.0)
    assert target.allows(105.0, 50) == 50


def test_what_the_target_asks_for_comes_first_and_calls_under_way_change_nothing() -> None:
    target = _a_target()

    assert _pause(target, 0.0, 17.0) == 17.0
    assert _pause(target, 1.0, 400.0) == 16.0
    assert target.probes_at == 17.0
