"""Carrying out verdicts: ack, release or bury, and tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.bus.breaker import CircuitBreaker
from postroad.bus.health import Tally
from postroad.bus.judging import Ack, Bury, Release, Verdict
from postroad.bus.memory import Memory
from postroad.bus.telling import Teller
from postroad.errors import PostroadError
from postroad.queues.acking import Acker
from postroad.queues.burying import DeadLetters
from postroad.queues.holding import Held, Holdings

_LINES = {
    "handled": "bus_handled",
    "echo": "bus_echo",
    "duplicate": "bus_duplicate",
    "unhandled": "bus_unhandled",
    "failed": "bus_retried",
}
_COUNTED = {"handled": "handled", "duplicate": "duplicates", "unhandled": "unhandled", "failed": "failed"}


@dataclass(slots=True, kw_only=True)
class Settler:
    """Settles the messages of one bus."""

    acker: Acker
    holdings: Holdings
    memory: Memory
    dead_letters: DeadLetters | None
    breaker: CircuitBreaker
    teller: Teller
    tally: Tally

    def settle(self, held: Held, verdict: Verdict) -> Release | None:
        """Ack or bury the message; when it has to come again, how. A message whose lease is lost is left alone."""
        self._count(verdict)
        if held.lost:
            self.holdings.let_go([held])
            self.tally.add("failed")
            self.teller.tell("bus_lease_lost", verdict.envelope, message_id=held.delivery.message_id)
            return None
        if isinstance(verdict, Ack):
            self.holdings.let_go([held])
            self.acker.add(held.queue, held.delivery)
            return None
        if isinstance(verdict, Release):
            return verdict
        if self._bury(held, verdict):
            return None
        return Release(outcome="failed", envelope=verdict.envelope, after=verdict.after, error=verdict.error)

    def release(self, helds: Sequence[Held], *, after: float = 0.0, error: str | None = None) -> None:
        """Give the messages back, last to first, so that no later one of a group comes before an earlier one."""
        self.holdings.let_go(helds)
        for queue in {id(held.queue): held.queue for held in helds}.values():
            mine = [held.delivery for held in reversed(helds) if held.queue is queue and not held.lost]
            try:
                queue.release(mine, after=after, error=error)
            except PostroadError as failure:
                # Unreleased, they come back by themselves when their visibility ends.
                self.tally.last_error = str(failure)

    def give_back(self, helds: Sequence[Held], *, after: float = 0.0) -> None:
        """Release messages on which no handler began; that receive does not count as an attempt."""
        for held in helds:
            self.memory.spare(held.delivery.message_id)
        self.release(helds, after=after)

    def _bury(self, held: Held, verdict: Bury) -> bool:
        if self.dead_letters is None:
            return False
        self.holdings.let_go([held])
        try:
            buried = self.dead_letters.bury(held.queue, held.delivery, reason=verdict.reason, error=verdict.error)
        except PostroadError as error:
            self.tally.last_error = str(error)
            return False
        if buried:
            self.tally.add("dead_lettered")
            self.teller.tell(
                "bus_dead_lettered", verdict.envelope, message_id=held.delivery.message_id, reason=verdict.reason
            )
        return buried

    def _count(self, verdict: Verdict) -> None:
        if (counted := _COUNTED.get(verdict.outcome)) is not None:
            self.tally.add(counted)
        if (line := _LINES.get(verdict.outcome)) is not None:
            self.teller.tell(line, verdict.envelope)
        if verdict.outcome == "handled":
            self.breaker.succeeded()
        elif verdict.outcome == "failed":
            self.breaker.failed()
