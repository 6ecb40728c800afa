"""What to do with the message of a task, by what its lease says; pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from postroad.tasks.leases import Lease


class Take(msgspec.Struct, frozen=True):
    """Run it."""


class Drop(msgspec.Struct, frozen=True):
    """Ack it: the run ended, or a later one took its place."""

    why: Literal["known", "older"]


class HandBack(msgspec.Struct, frozen=True):
    """Somebody else runs it; look again when the lease ends."""

    seconds: float


class Quarantine(msgspec.Struct, frozen=True):
    """It was tried often enough. `lost`: the last worker never said what became of its attempt."""

    lost: bool


Receipt = Take | Drop | HandBack | Quarantine


def decide(lease: Lease | None, *, run: int, now: float, max_attempts: int) -> Receipt:
    """What the lease says about a message of this run."""
    if lease is None or run > lease.run:
        return Take()
    if run < lease.run:
        return Drop("older")
    if lease.outcome is not None:
        return Drop("known")
    if lease.is_live(now):
        return HandBack(max(0.0, lease.effective_until - now))
    if lease.attempts >= max_attempts:
        return Quarantine(lost=lease.owner is not None)
    return Take()


def pause_before_retry(attempt: int, *, base: float, cap: float, chance: float) -> float:
    """Seconds until the next attempt: doubled each time, scattered, never above the cap."""
    return float(min(base * 2.0 ** min(attempt - 1, 60) * (1 + chance), cap))


def pause_while_unknown(age: float, *, grace: float) -> float | None:
    """Seconds until a worker may look again at a task whose name it does not know; None when the grace is over.

    The pause grows with the age of the run: a worker that knows the name gets a young task soon, and an old one does
    not use up the receives that its queue allows.
    """
    left = grace - age
    return None if left <= 0 else min(max(1.0, age / 2), max(60.0, grace / 30), left)
