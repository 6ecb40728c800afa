"""The way of dead letters: where they go back to, and the two walks through their queue, planned and unordered."""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from postroad import errors
from postroad.queues.markers import REDRIVE, mark_redriven, read_dead
from postroad.queues.match import RedriveReport, Selection
from postroad.queues.port import Movable, Move, MoveStep, PeekedMessage, QueueStore

STEP = 500
"""How many messages one step reads at most."""
# SQS gives out so many by one call.
_AT_ONCE = 10


class Destinations:
    """Where dead letters go: to `to`, else to the queue a message came from, else to the only queue it can be."""

    def __init__(self, directory: QueueStore, dead_letters: str, to: str | None) -> None:
        self._directory = directory
        self._dead_letters = dead_letters
        self._to = to
        self._known: dict[str | None, str] = {}
        if to is not None:
            self._known[to] = self._checked(to, "to")

    def origin(self, message: PeekedMessage) -> str | None:
        """Return the queue the message came from, or `to`; None if the message does not name it."""
        if self._to is not None:
            return self._to
        dead = read_dead(message.attributes)
        return None if dead is None else dead.source

    def known(self, message: PeekedMessage) -> str:
        """Return the destination of a message whose origin was resolved before, without a call."""
        return self._known[self.origin(message)]

    def resolve(self, origin: str | None) -> str:
        """Return the destination, looked up and checked the first time."""
        if origin not in self._known:
            self._known[origin] = self._checked(self._only_source() if origin is None else origin, "source")
        return self._known[origin]

    def only_source(self) -> str | None:
        """Return the one destination of all messages: `to`, or the only queue with these dead letters; else None."""
        if self._to is not None:
            return self._to
        sources = self._sources()
        return sources[0] if len(sources) == 1 else None

    def refuse_if_unused(self) -> None:
        """Refuse a queue that no other has as dead letters if no destination is given either."""
        if self._to is None and not self._sources():
            self._only_source()

    def _only_source(self) -> str:
        sources = self._sources()
        if len(sources) != 1:
            users = "no queue has" if not sources else f"{', '.join(sources)} all have"
            raise errors.AmbiguousSource(
                f"to: a message does not say where it came from, and {users} {self._dead_letters!r} as dead letters",
                field="to",
            )
        return sources[0]

    def _sources(self) -> list[str]:
        try:
            return self._directory.sources(self._dead_letters)
        except errors.NotPermitted:
            # An operator need not have the right to list queues: the dead-letter queue itself may name its users.
            allowed = self._directory.queue_spec(self._dead_letters).redrive_allow
            if isinstance(allowed, str):
                raise
        found: list[str] = []
        for name in allowed:
            # One that was deleted is left out.
            with suppress(errors.QueueNotFound):
                spec = self._directory.queue_spec(name)
                found += [spec.name] if spec.dead_letter == self._dead_letters else []
        return found

    def _checked(self, name: str, field: str) -> str:
        if name == self._dead_letters:
            text = f"{field}: {name!r} is itself the queue to redrive"
            raise errors.InvalidName(text, field=field, remedy="Name another destination.")
        spec = self._directory.queue_spec(name)
        if spec.fifo is not self._dead_letters.endswith(".fifo"):
            raise errors.ConfigurationError(
                f"{field}: {name!r} and {self._dead_letters!r} are not of one kind: "
                "FIFO messages go to FIFO queues, standard ones to standard queues",
                field=field,
            )
        return name


@dataclass
class PlannedWalk:
    """All messages to move, found by reading the queue once: every destination is known before the first one moves."""

    source: Movable
    selection: Selection
    destinations: Destinations
    only_look: bool = False
    _sequences: array[int] = field(default_factory=lambda: array("q"))
    _next: int = 0

    def __post_init__(self) -> None:
        self._found = self._look()
        self.selection.count_moved_only()

    def report(self) -> RedriveReport:
        """Return what a run would do."""
        return self.selection.report("dry_run", self._found)

    def step(self, allowed: int, left: int | None) -> MoveStep:
        """Move up to `allowed` messages, and no more than are `left` to move; the cursor is None at the end."""
        count = allowed if left is None else min(allowed, left)
        only = self._sequences[self._next : self._next + count]
        self._next += len(only)
        step = self.source.move(self._decide, only=only)
        more = self._next < len(self._sequences)
        return MoveStep(str(self._next) if more else None, step.looked_at, step.moved, step.in_flight)

    def go_on(self) -> None:
        """After the canary, let the others follow."""
        self.selection.choose_all()

    def stop(self) -> None:
        """Do nothing: this walk holds no messages."""

    def _look(self) -> Counter[str]:
        origins: Counter[str | None] = Counter()
        cursor: str | None = None
        while True:
            looked = self.source.look(cursor=cursor, limit=STEP)
            self.selection.skipped["in_flight"] += looked.in_flight
            for message in looked.messages:
                if self.selection.chooses(message):
                    origins[self.destinations.origin(message)] += 1
                    if message.sequence is not None and not self.only_look:
                        self._sequences.append(message.sequence)
            self.selection.looked_at += len(looked.messages) + looked.in_flight
            if (cursor := looked.cursor) is None:
                break
        found: Counter[str] = Counter()
        for origin, count in origins.items():
            found[self.destinations.resolve(origin)] += count
        return found

    def _decide(self, message: PeekedMessage) -> Move:
        return _move_back(message, self.destinations.known(message), self.selection)


@dataclass
class UnorderedWalk:
    """One message after another, as the store gives them out in no order that could be planned."""

    source: Movable
    selection: Selection
    destinations: Destinations
    _cursor: str | None = None
    _any_moved: bool = False

    def step(self, allowed: int, left: int | None) -> MoveStep:
        """Move up to `allowed` of the next ten messages; the cursor is None at the queue's end."""
        step = self.source.move(self._decide, cursor=self._cursor, limit=min(allowed, _AT_ONCE))
        self._cursor = step.cursor
        self.selection.looked_at += step.looked_at + step.in_flight
        return step

    def go_on(self) -> None:
        """After the canary, start again with the others."""
        self.stop()
        self.selection.choose_all(again=True)

    def stop(self) -> None:
        """Release the messages that the walk holds."""
        self.source.stop(self._cursor)
        self._cursor = None

    def _decide(self, message: PeekedMessage) -> Move | None:
        if not self.selection.chooses(message):
            return None
        try:
            to = self.destinations.resolve(self.destinations.origin(message))
        except (errors.ConfigurationError, errors.InvalidInput, errors.QueueNotFound):
            # The redrive is refused only while nothing has moved.
            if not self._any_moved:
                raise
            self.selection.leave("no_destination")
            return None
        self._any_moved = True
        return _move_back(message, to, self.selection)


def _move_back(message: PeekedMessage, to: str, selection: Selection) -> Move:
    attributes = mark_redriven(message.attributes, selection.run_id)
    if REDRIVE not in attributes:
        selection.unmarked.add(message.message_id)
    return Move(to=to, attributes=attributes)
