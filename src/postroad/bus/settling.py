"""Carrying out verdicts: ack, release or bury, and tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.bus.breaker import CircuitBreaker
from postroad.bus.health import Tally
from postroad.bus.judging import Ack, Bury, Release, Verdict
from postroad.bus.memory import Memory
from postroad.bus.telling import Teller
from postroad.events import Envelope
from postroad.queues.acking import Acker
from postroad.queues.burying import DeadLetters
from postroad.queues.holding import Held, Holdings

_LINES = {
    "handled": "bus_handled",
    "echo": "bus_echo",
    "duplicate": "bus_duplicate",
    "unhandled": "bus_unhandled",
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
        """Ack or bury the message; when it has to come again, how."""
        if held.lost:
            return self.lose(held, verdict.envelope)
        self._count(verdict)
        if isinstance(verdict, Ack):
            self.holdings.let_go([held])
            self.acker.add(held.queue, held.delivery)
            return None
        if isinstance(verdict, Bury) and self._bury(held, verdict):
            return None
        return self._come_again(verdict)

    def lose(self, held: Held, envelope: Envelope | None = None) -> Release:
        """Leave a message alone whose lease is lost; what waits behind it in its group is to be given back."""
        self.holdings.let_go([held])
        self.tally.add("failed")
        self.teller.tell("bus_lease_lost", envelope, message_id=held.delivery.message_id)
        return Release(outcome="lost", envelope=envelope, after=0.0)

    def release(self, helds: Sequence[Held], *, after: float = 0.0, error: str | None = None) -> None:
        """Give the messages back, last to first, so that no later one of a group comes before an earlier one."""
        self.holdings.let_go(helds)
        for queue in {id(held.queue): held.queue for held in helds}.values():
            mine = [held.delivery for held in reversed(helds) if held.queue is queue and not held.lost]
            try:
                if mine:
                    queue.release(mine, after=after, error=error)
            except Exception as failure:
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
        except Exception as error:
            self.tally.last_error = str(error)
            return False
        if buried:
            self.tally.add("dead_lettered")
            self.teller.tell(
                "bus_dead_lettered", verdict.envelope, message_id=held.delivery.message_id, reason=verdict.reason
            )
        return buried

    def _come_again(self, verdict: Release | Bury) -> Release:
        if verdict.outcome == "dead_lettered":
            # There are no dead letters, or they took nothing: it is one more failed delivery.
            self.tally.add("failed")
        if verdict.outcome in ("failed", "dead_lettered"):
            self.teller.tell("bus_retried", verdict.envelope)
        return Release(outcome=verdict.outcome, envelope=verdict.envelope, after=verdict.after, error=verdict.error)

    def _count(self, verdict: Verdict) -> None:
        if (counted := _COUNTED.get(verdict.outcome)) is not None:
            self.tally.add(counted)
        if (line := _LINES.get(verdict.outcome)) is not None:
            self.teller.tell(line, verdict.envelope, in_order=isinstance(verdict, Ack))
        if verdict.outcome == "handled":
            self.breaker.succeeded()
        elif verdict.outcome == "failed":
            self.breaker.failed()
