"""Pauses after failures, with jitter so that many callers do not come back at the same moment."""

from __future__ import annotations

from dataclasses import dataclass
from random import SystemRandom

CHANCE = SystemRandom()
"""Random numbers of our own: a program that seeds the `random` module gets the same ones with and without us."""


@dataclass(slots=True)
class Backoff:
    """Pauses after failures in a row: from half a second, doubled, to thirty."""

    failures: int = 0

    def next(self, chance: float | None = None) -> float:
        """Return the pause after one more failure; `chance`, from 0 to 1, is drawn unless given."""
        self.failures += 1
        drawn = CHANCE.random() if chance is None else chance
        return min(30.0, 0.5 * 2.0 ** min(self.failures - 1, 10)) * (0.5 + drawn / 2)

    def reset(self) -> None:
        """Start anew after a success."""
        self.failures = 0
