"""The target of a dispatcher: whether it takes messages, how long to pause, and who is told when it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.outbox.dispatching.metrics import EventLog
from postroad.outbox.dispatching.publisher import Sent, TargetDown, Verdict
from postroad.outbox.dispatching.store import DispatchStore

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


class Target:
    """Hears the verdicts of calls, pauses everything while the target refuses, and tells the database about it."""

    def __init__(self, store: DispatchStore, event_log: EventLog, *, first_pause: float) -> None:
        self._store = store
        self._event_log = event_log
        self._pause = TargetPause(first_pause)
        self._news: tuple[str | None, float] | None = None
        self._answered = False
        self.error: str | None = None

    @property
    def paused(self) -> bool:
        """Whether it refused, and no message got through since."""
        return self._pause.until is not None

    @property
    def probes_at(self) -> float:
        """The monotonic time at which one message may probe."""
        return self._pause.until or 0.0

    @property
    def has_news(self) -> bool:
        """Whether the database does not know yet."""
        return self._news is not None

    def allows(self, now: float, rows: int) -> int:
        """How many rows may be claimed now."""
        return self._pause.allows(now, rows)

    def hear(self, verdicts: Sequence[Verdict], now: float) -> bool:
        """Take in the verdicts of a call; whether everything has to stop."""
        down = next((verdict for verdict in verdicts if isinstance(verdict, TargetDown)), None)
        if down is not None:
            self._refuse(down, now)
        elif now >= self.probes_at and any(isinstance(verdict, Sent) for verdict in verdicts):
            self._answer()
        elif now >= self.probes_at:
            # It failed in another way, which says nothing against the target: the next one may try.
            self._pause.end()
        return down is not None

    def tell(self) -> None:
        """Let the database know."""
        if self._news is not None:
            error, pause = self._news
            self._store.tell_target(error, pause=pause)
            self._news = None

    def _refuse(self, down: TargetDown, now: float) -> None:
        seconds = self._pause.begin(now, down.retry_after)
        self.error = down.error
        self._news = down.error, seconds
        self._event_log.tell("outbox_target_unavailable", error=down.error, pause=round(seconds, 3))

    def _answer(self) -> None:
        """The first success of all clears what a dispatcher before us may have left."""
        if self._pause.end():
            self._event_log.tell("outbox_target_back")
        if not self._answered or self.error is not None:
            self._news = None, 0.0
        self._answered, self.error = True, None
