"""What a dispatcher needs of the database, and which store and wake-up fit it. Drivers are imported when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from postroad.connections import Database, Dialect
from postroad.events import DomainEvent
from postroad.outbox.dialects import Phrases
from postroad.outbox.dispatching.config import DispatcherConfig
from postroad.outbox.dispatching.messages import ClaimedRow, Gauges, Key, Lease, Settled, Settlement
from postroad.outbox.schema import Names

Wake = Callable[[], None]


class DispatchStore(Protocol):
    """The rows of one outbox as one dispatcher sees them. All verbs but `gauges` are called by one thread at a time."""

    def open(self) -> None:
        """Connect, or connect anew, and make sure that the tables are there and can be written."""
        ...

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        """Lease up to `limit` rows of keys behind `after`: of each key the first rows, in order, when they are due.

        The first `leaving` of these keys are left to others.
        """
        ...

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        """Lease the rows anew; the leases that were still ours."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write what became of rows that are still ours, and free them; those that were not are left out."""
        ...

    def tell_target(self, error: str | None, *, pause: float = 0.0) -> None:
        """Let everybody see what is wrong with the target, and for how long it is left alone; None: nothing is."""
        ...

    def gauges(self) -> Gauges:
        """Count, on a connection of its own."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Dispatchable(Protocol):
    """The outbox, as far as a dispatcher needs it."""

    names: Names
    dialect: Dialect
    max_bytes: int

    @property
    def database(self) -> Database: ...

    def opened(self, event: DomainEvent) -> DomainEvent:
        """The event with a readable payload, or Undecryptable."""
        ...


class Waker(Protocol):
    """Wakes a dispatcher when rows were added."""

    def start(self) -> bool:
        """Begin; False when it cannot work here."""
        ...

    def stop(self) -> None:
        """End."""
        ...


def store_for(outbox: Dispatchable, *, owner: str, config: DispatcherConfig) -> DispatchStore:
    """The outbox's rows, for the dispatcher that is called `owner` in leases."""
    words = Phrases(outbox.names, outbox.dialect)
    if outbox.dialect == "postgresql":
        from postroad.connections import PostgresDatabase
        from postroad.outbox.dispatching.postgres import PostgresDispatchStore

        database = cast(PostgresDatabase, outbox.database)
        return PostgresDispatchStore(database, words, owner=owner, lease=config.lease, policy=config.policy)
    from postroad.connections import ApplicationFile
    from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore

    file = cast(ApplicationFile, outbox.database)
    return SQLiteDispatchStore(file, words, owner=owner, lease=config.lease, policy=config.policy)


def waker_for(outbox: Dispatchable, wake: Wake) -> Waker:
    """What calls `wake` soon after rows were added."""
    if outbox.dialect == "postgresql":
        from postroad.connections import PostgresDatabase
        from postroad.outbox.dispatching.listener import Listener

        return Listener(cast(PostgresDatabase, outbox.database), outbox.names, wake)
    from postroad.connections import ApplicationFile
    from postroad.outbox.dispatching.watcher import Watcher

    return Watcher(cast(ApplicationFile, outbox.database), wake)


def with_phrases(statement: str, words: Mapping[str, str]) -> str:
    """The statement with each {word} replaced by what it stands for."""
    for word, meaning in words.items():
        statement = statement.replace(f"{{{word}}}", meaning)
    return statement
