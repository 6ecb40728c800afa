"""What fits the database of an outbox: the store, and what wakes a dispatcher. Drivers are imported when needed."""

from __future__ import annotations

from typing import Protocol, cast

from postroad.connections.callers import Dialect
from postroad.connections.database import Database
from postroad.events import DomainEvent
from postroad.outbox.dialects import Words
from postroad.outbox.dispatching.config import DispatcherConfig
from postroad.outbox.dispatching.store import DispatchStore, Wake
from postroad.outbox.schema import Names


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
    words = Words(outbox.names, outbox.dialect)
    if outbox.dialect == "postgresql":
        from postroad.connections.postgres import PostgresDatabase
        from postroad.outbox.dispatching.postgres import PostgresDispatchStore

        database = cast(PostgresDatabase, outbox.database)
        return PostgresDispatchStore(database, words, owner=owner, lease=config.lease, policy=config.policy)
    from postroad.connections.application_file import ApplicationFile
    from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore

    file = cast(ApplicationFile, outbox.database)
    return SQLiteDispatchStore(file, words, owner=owner, lease=config.lease, policy=config.policy)


def waker_for(outbox: Dispatchable, wake: Wake) -> Waker:
    """What calls `wake` soon after rows were added."""
    if outbox.dialect == "postgresql":
        from postroad.connections.postgres import PostgresDatabase
        from postroad.outbox.dispatching.listening import Listener

        return Listener(cast(PostgresDatabase, outbox.database), outbox.names, wake)
    from postroad.connections.application_file import ApplicationFile
    from postroad.outbox.dispatching.watching import Watcher

    return Watcher(cast(ApplicationFile, outbox.database), wake)
