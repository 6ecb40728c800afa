"""What the lease says about a message, and when an attempt is repeated."""

from __future__ import annotations

import pytest

from postroad.tasks.leases import Lease, Outcome, lease_end
from postroad.tasks.verdicts import Drop, HandBack, Quarantine, Receipt, Take, decide, pause_before_retry

DONE = Outcome("Task Completed", "x", 1)


@pytest.mark.parametrize(
    ("lease", "run", "wanted"),
    [
        (None, 1, Take()),
        (Lease(), 1, Take()),
        (Lease(run=2), 1, Drop("older")),
        (Lease(run=1, outcome=DONE), 1, Drop("known")),
        (Lease(run=1, outcome=DONE), 2, Take()),
        (Lease(owner="w", effective_until=130), 1, HandBack(30.0)),
        (Lease(owner="w", effective_until=100, attempts=1), 1, Take()),
        (Lease(owner="w", effective_until=100, attempts=3), 1, Quarantine(lost=True)),
        (Lease(attempts=3), 1, Quarantine(lost=False)),
        (Lease(attempts=3), 2, Take()),
        (Lease(owner="w", effective_until=130, attempts=3), 1, HandBack(30.0)),
    ],
)
def test_a_message_is_taken_dropped_handed_back_or_quarantined(lease: Lease | None, run: int, wanted: Receipt) -> None:
    assert decide(lease, run=run, now=100.0, max_attempts=3) == wanted


def test_a_taking_raises_token_and_attempts_and_a_new_run_counts_anew() -> None:
    first = Lease().taken(owner="a", run=1, until=10, now_ms=5)
    second = first.taken(owner="b", run=1, until=20, now_ms=6)
    next_run = second.taken(owner="a", run=2, until=30, now_ms=7)

    assert [(lease.token, lease.attempts) for lease in (first, second, next_run)] == [(1, 1), (2, 2), (3, 1)]
    assert not second.is_held_by("a", 1)
    assert second.is_held_by("b", 2)


def test_a_lease_ends_one_and_a_half_extensions_from_now_rounded_up() -> None:
    assert lease_end(1_000.2, 30.0) == 1_046


@pytest.mark.parametrize(
    ("attempt", "chance", "wanted"), [(1, 0.0, 1.0), (1, 0.5, 1.5), (2, 0.0, 2.0), (4, 0.0, 8.0), (9, 0.0, 30.0)]
)
def test_the_pause_doubles_is_scattered_and_stays_below_the_cap(attempt: int, chance: float, wanted: float) -> None:
    assert pause_before_retry(attempt, base=1.0, cap=30.0, chance=chance) == wanted


def test_the_pause_after_very_many_attempts_is_the_cap() -> None:
    assert pause_before_retry(10_000, base=1.0, cap=30.0, chance=0.9) == 30.0
