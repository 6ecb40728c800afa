"""The two ways through a dead-letter queue: by a list of what goes, or by meeting one message after another."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Protocol

from postroad.errors import ConfigurationError, InvalidInput, QueueNotFound
from postroad.queues.destinations import Destinations
from postroad.queues.markers import REDRIVE, mark_redriven
from postroad.queues.match import Chosen
from postroad.queues.moves import Movable, Move, MoveStep
from postroad.queues.pace import STEP
from postroad.queues.port import PeekedMessage
from postroad.queues.report import RedriveReport

# What SQS gives out by one call.
_AT_ONCE = 10


class Walk(Protocol):
    """A way through the queue, step by step."""

    def step(self, allowed: int, left: int | None) -> MoveStep:
        """Move up to `allowed` messages, and no more than are `left` to move; no cursor at the end."""
        ...

    def go_on(self) -> None:
        """After the canary: let the others follow."""
        ...

    def stop(self) -> None:
        """Give back what the walk holds out of its way."""
        ...


class Plan:
    """Every message that goes, found by one look ahead: all destinations are known before the first one moves."""

    def __init__(self, source: Movable, chosen: Chosen, destinations: Destinations, *, only_look: bool = False) -> None:
        self._source = source
        self._only_look = only_look
        self._chosen = chosen
        self._destinations = destinations
        self._sequences = array("q")
        self._begun = 0
        self._found = self._look()
        chosen.is_made()

    def report(self) -> RedriveReport:
        """What a run would do."""
        return self._chosen.report("dry_run", self._found)

    def step(self, allowed: int, left: int | None) -> MoveStep:
        count = allowed if left is None else min(allowed, left)
        only = self._sequences[self._begun : self._begun + count]
        self._begun += len(only)
        step = self._source.move(self._decide, only=only)
        more = self._begun < len(self._sequences)
        return MoveStep(str(self._begun) if more else None, step.looked_at, step.moved, step.in_flight)

    def go_on(self) -> None:
        self._chosen.release()

    def stop(self) -> None:
        """It holds nothing."""

    def _look(self) -> Counter[str]:
        origins: Counter[str | None] = Counter()
        cursor: str | None = None
        while True:
            looked = self._source.look(cursor=cursor, limit=STEP)
            self._chosen.skipped["in_flight"] += looked.in_flight
            for message in looked.messages:
                if self._chosen.goes(message):
                    origins[self._destinations.origin(message)] += 1
                    if message.sequence is not None and not self._only_look:
                        self._sequences.append(message.sequence)
            self._chosen.looked_at += len(looked.messages) + looked.in_flight
            if (cursor := looked.cursor) is None:
                break
        found: Counter[str] = Counter()
        for origin, count in origins.items():
            found[self._destinations.resolve(origin)] += count
        return found

    def _decide(self, message: PeekedMessage) -> Move:
        return _back(message, self._destinations.known(message), self._chosen)


class Meeting:
    """One message after another as the store gives them out, which does so in no order that could be planned."""

    def __init__(self, source: Movable, chosen: Chosen, destinations: Destinations) -> None:
        self._source = source
        self._chosen = chosen
        self._destinations = destinations
        self._cursor: str | None = None
        self._some_went = False

    def step(self, allowed: int, left: int | None) -> MoveStep:
        step = self._source.move(self._decide, cursor=self._cursor, limit=min(allowed, _AT_ONCE))
        self._cursor = step.cursor
        self._chosen.looked_at += step.looked_at + step.in_flight
        return step

    def go_on(self) -> None:
        self.stop()
        self._chosen.begin_again()

    def stop(self) -> None:
        self._source.stop(self._cursor)
        self._cursor = None

    def _decide(self, message: PeekedMessage) -> Move | None:
        if not self._chosen.goes(message):
            return None
        try:
            to = self._destinations.resolve(self._destinations.origin(message))
        except (ConfigurationError, InvalidInput, QueueNotFound):
            # Refused as a whole while nothing has moved; later it would be a refusal that changed something.
            if not self._some_went:
                raise
            self._chosen.stays("no_destination")
            return None
        self._some_went = True
        return _back(message, to, self._chosen)


def _back(message: PeekedMessage, to: str, chosen: Chosen) -> Move:
    attributes = mark_redriven(message.attributes, chosen.run_id)
    if REDRIVE not in attributes:
        chosen.unmarked.add(message.message_id)
    return Move(to=to, attributes=attributes)
