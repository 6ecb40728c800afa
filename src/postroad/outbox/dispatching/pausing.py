"""The pause of a dispatcher whose target is unavailable: doubled each time, ended by one message that gets through."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST = 60.0


@dataclass(slots=True)
class TargetPause:
    """Knows whether rows may be claimed, and how many."""

    first: float
    until: float | None = None
    """The monotonic time at which one message may probe; None while the target is well."""
    _next: float = 0.0

    def begin(self, now: float, retry_after: float | None) -> float:
        """Pause after a refusal; the seconds it takes. What the target asks for comes before our own doubling.

        Calls that were on their way when the pause began do not make it longer.
        """
        if self.until is not None and now < self.until:
            return self.until - now
        doubled = max(self.first, min(self._next, _LONGEST))
        self._next = doubled * 2
        seconds = retry_after if retry_after else doubled
        self.until = now + seconds
        return seconds

    def end(self) -> bool:
        """The target answered; whether there was a pause."""
        was_paused, self.until, self._next = self.until is not None, None, 0.0
        return was_paused

    def allows(self, now: float, rows: int) -> int:
        """How many rows may be claimed: none during the pause, one to probe after it, all when there is none."""
        if self.until is None:
            return rows
        return 1 if now >= self.until else 0
