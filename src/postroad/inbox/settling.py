"""Carrying out verdicts: ack, release or bury, count and tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.errors import PostroadError
from postroad.events import DomainEvent
from postroad.inbox.applying import Ack, Again, Bury, Verdict
from postroad.inbox.patience import Patience
from postroad.inbox.telling import Teller
from postroad.queues import Queue
from postroad.queues.acking import Acker
from postroad.queues.burying import GivenDeadLetters
from postroad.queues.holding import Held, Holdings
from postroad.queues.tally import Tally

# A first failure is often a passing one, so its retry comes at once; in every case before the visibility would end.
_DELAYS = (0.0, 1.0, 5.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Settles the messages of one consumer."""

    queue: Queue
    visibility: float
    dead_letters: GivenDeadLetters | None
    acker: Acker
    holdings: Holdings
    patience: Patience
    tally: Tally
    teller: Teller

    def settle(self, held: Held, verdict: Verdict, event: DomainEvent | None) -> Again | None:
        """Ack or bury the message; when it has to come again, how."""
        if isinstance(verdict, Ack):
            self.holdings.let_go([held])
            self.tally.add(verdict.outcome)
            self.acker.add(held.queue, held.delivery)
            self.teller.settled(verdict.outcome, held.delivery, event)
            return None
        if isinstance(verdict, Bury):
            return self._bury(held, verdict)
        return verdict

    def gave_up(self, held: Held, again: Again, behind: Sequence[Held]) -> bool:
        """Whether the message, failed for the last time, went to the queue's own dead letters here and now.

        The queue would move it at the next receive, and with it those behind it, which were received as often.
        """
        most = self.queue.traits.max_receives
        if not behind or again.outcome != "failed" or most is None or held.delivery.receive_count < most:
            return False
        try:
            (result,) = self.queue.reject([held.delivery], reason="handler_failed", error=again.error)
        except PostroadError:
            return False
        if result.ok:
            self.holdings.let_go([held])
            self.tally.add("failed")
            self.teller.dead_lettered(held.delivery, "handler_failed", again.error or "")
        return result.ok

    def again(self, held: Held, behind: Sequence[Held], again: Again) -> None:
        """Give back a message and those behind it in its group, in one call, so that one delay holds for all."""
        after = min(self.visibility, self._delay(held, again))
        self.tally.add(again.outcome)
        self.tally.add("released", len(behind))
        if again.outcome == "failed":
            self.teller.retried(held.delivery, again.error, after)
        self.patience.expect(held.delivery, after)
        self._release([held, *behind], after=after, error=again.error)
        self.teller.released([each.delivery for each in behind])

    def give_back(self, helds: Sequence[Held]) -> None:
        """Give back messages on which nothing began."""
        self.tally.add("released", len(helds))
        self._release(helds)
        self.teller.released([held.delivery for held in helds])

    def _delay(self, held: Held, again: Again) -> float:
        if again.after is not None:
            return again.after
        return _DELAYS[min(held.delivery.receive_count, len(_DELAYS)) - 1]

    def _bury(self, held: Held, verdict: Bury) -> Again | None:
        failed = Again(outcome="failed", error=verdict.error)
        if self.dead_letters is None:
            return failed
        try:
            buried = self.dead_letters.bury(self.queue, held.delivery, reason=verdict.reason, error=verdict.error)
        except PostroadError:
            return failed
        if not buried:
            return failed
        self.holdings.let_go([held])
        self.tally.add("dead")
        self.teller.dead_lettered(held.delivery, verdict.reason, verdict.error)
        self.teller.count_dead_letters(self.dead_letters.letters)
        return None

    def _release(self, helds: Sequence[Held], *, after: float = 0.0, error: str | None = None) -> None:
        """Last to first, so that no later one of a group comes before an earlier one."""
        self.holdings.let_go(helds)
        mine = [held.delivery for held in reversed(helds) if not held.lost]
        if not mine:
            return
        try:
            self.queue.release(mine, after=after, error=error)
        except PostroadError as failure:
            # Unreleased, they come back by themselves when their visibility ends.
            self.teller.paused(failure)
