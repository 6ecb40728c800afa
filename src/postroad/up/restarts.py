"""When a part that died is started again: a decision without effects."""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 10.0
STEADY_SECONDS = 60.0
DEATHS_TO_FAIL = 5
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a part died lately, and how long it waits before it starts again."""

    deaths: tuple[float, ...] = ()
    total: int = 0
    delay: float = FIRST_SECONDS
    failed: bool = False

    def died(self, now: float, *, started_at: float) -> Restarts:
        """The state after a death at `now` of what was started at `started_at`; `pause` says how long to wait."""
        recent = (*(death for death in self.deaths if now - death < WINDOW_SECONDS), now)
        steady = now - started_at >= STEADY_SECONDS
        delay = FIRST_SECONDS if steady or not self.deaths else min(self.delay * 2, LONGEST_SECONDS)
        return replace(self, deaths=recent, delay=delay, failed=len(recent) >= DEATHS_TO_FAIL)

    def started_again(self) -> Restarts:
        """The state after the start that followed a death."""
        return replace(self, total=self.total + 1)
