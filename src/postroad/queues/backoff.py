"""Pauses of a receiver whose queue fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Pauses after failures in a row: from half a second, doubled, to thirty."""

    failures: int = 0

    def next(self, chance: float) -> float:
        """The pause after one more failure."""
        self.failures += 1
        return min(30.0, 0.5 * 2.0 ** min(self.failures - 1, 10)) * (0.5 + chance / 2)

    def reset(self) -> None:
        """Start anew after a success."""
        self.failures = 0
