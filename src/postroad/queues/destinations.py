"""Where dead letters go back to, checked before anything moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from postroad.errors import AmbiguousSource, ConfigurationError, InvalidName, NotPermitted, QueueNotFound
from postroad.queues.markers import read_dead
from postroad.queues.port import PeekedMessage, Queue
from postroad.queues.spec import QueueSpec


class QueueDirectory(Protocol):
    """The queues of a backend by their names."""

    def queue(self, name: str) -> Queue: ...
    def queue_spec(self, name: str) -> QueueSpec: ...
    def queues(self) -> list[str]: ...


@runtime_checkable
class TellsSources(Protocol):
    """A directory that knows who uses a queue as dead letters, without a look at every queue."""

    def sources(self, dead_letters: str) -> list[str]: ...


class Destinations:
    """The way back from one dead-letter queue: `to`, else the queue a message died in, else the only one it can be."""

    def __init__(self, directory: QueueDirectory, dead_letters: str, to: str | None) -> None:
        self._directory = directory
        self._dead_letters = dead_letters
        self._to = to
        self._known: dict[str | None, str] = {}
        if to is not None:
            self._known[to] = self._checked(to, field="to")

    def origin(self, message: PeekedMessage) -> str | None:
        """The queue to ask the way back of; None when the message does not tell."""
        if self._to is not None:
            return self._to
        dead = read_dead(message.attributes)
        return None if dead is None else dead.source

    def known(self, message: PeekedMessage) -> str:
        """The destination of a message whose origin was resolved before; asks nobody."""
        return self._known[self.origin(message)]

    def resolve(self, origin: str | None) -> str:
        """The destination, looked up and checked the first time."""
        if origin not in self._known:
            self._known[origin] = self._checked(self._only_source() if origin is None else origin, field="source")
        return self._known[origin]

    def only_source(self) -> str | None:
        """The one destination for all messages, whatever they tell: `to`, or the only queue that names these letters.

        None when there are several or none.
        """
        if self._to is not None:
            return self._to
        sources = self._sources()
        return sources[0] if len(sources) == 1 else None

    def refuse_if_nobodys(self) -> None:
        """Refuse a queue that nobody names as dead letters when no destination is given either."""
        if self._to is None and not self._sources():
            self._only_source()

    def _only_source(self) -> str:
        sources = self._sources()
        if len(sources) != 1:
            told = "no queue has" if not sources else f"{', '.join(sources)} all have"
            raise AmbiguousSource(
                f"to: a message does not tell where it came from, and {told} {self._dead_letters!r} as dead letters",
                field="to",
            )
        return sources[0]

    def _sources(self) -> list[str]:
        try:
            if isinstance(self._directory, TellsSources):
                return self._directory.sources(self._dead_letters)
            candidates: Sequence[str] = self._directory.queues()
        except NotPermitted:
            # An operator need not be allowed to list queues: the dead letters themselves may tell who uses them.
            allowed = self._directory.queue_spec(self._dead_letters).redrive_allow
            if isinstance(allowed, str):
                raise
            candidates = allowed
        specs = (self._spec(name) for name in candidates)
        return [spec.name for spec in specs if spec is not None and spec.dead_letter == self._dead_letters]

    def _spec(self, name: str) -> QueueSpec | None:
        try:
            return self._directory.queue_spec(name)
        except QueueNotFound:
            # It was deleted since it was listed.
            return None

    def _checked(self, name: str, *, field: str) -> str:
        if name == self._dead_letters:
            raise InvalidName(
                f"{field}: {name!r} is the queue to redrive itself", field=field, remedy="Name another destination."
            )
        spec = self._directory.queue_spec(name)
        if spec.fifo is not self._dead_letters.endswith(".fifo"):
            raise ConfigurationError(
                f"{field}: {name!r} and {self._dead_letters!r} are not of one kind: "
                "FIFO messages go to FIFO queues, standard ones to standard queues",
                field=field,
            )
        return name
