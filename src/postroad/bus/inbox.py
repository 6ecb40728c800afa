"""Exactly-once effects on a bus: each handler runs in the transaction that writes its row in the inbox."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any

from postroad.bus.local import EventHandler
from postroad.errors import ConfigurationError, PostroadError
from postroad.events import DomainEvent, Envelope
from postroad.inbox import (
    Inbox,
    InDatabase,
    Transaction,
    Windows,
    check_connections,
    check_windows,
    fingerprint_of,
    in_database,
)
from postroad.receiving import completed, name_of


class DatabaseFailed(Exception):
    """The database failed before a handler began; its cause says how."""


class InboxHandlers:
    """The handlers of one bus, each with a name under which the inbox knows what it has done."""

    def __init__(self, inbox: Inbox, prefix: str, *, transaction: Transaction | None, windows: Windows) -> None:
        check_windows(inbox.retention, windows)
        check_connections(inbox, transaction)
        self._inbox, self._prefix, self._transaction = inbox, prefix, transaction
        self._lock = threading.Lock()
        self._applications: dict[tuple[type, int], InDatabase] = {}
        self._failed: InDatabase | None = None
        """The handler before which the database failed."""

    def add(self, event_type: type, handler: EventHandler, name: str | None) -> None:
        """Make the handler known.

        Raises:
            ConfigurationError: It is async and there is no `transaction`, or another handler of this type has its name.
        """
        known = f"{self._prefix}/{name or name_of(handler)}"
        with self._lock:
            others = [
                each.name for (of, key), each in self._applications.items() if of is event_type and key != id(handler)
            ]
            if known in others:
                raise ConfigurationError(
                    f"name: {known!r} is another handler of {event_type.__qualname__}",
                    field="name",
                    remedy="Give each handler its own name, as in @bus.on(OrderPlaced, name='ledger').",
                )
            self._applications[event_type, id(handler)] = in_database(known, self._inbox, handler, self._transaction)

    def call(self, handler: EventHandler, event: object, envelope: Envelope) -> None:
        """Run the handler with a connection in its transaction, unless it has handled this event before.

        Raises:
            DatabaseFailed: Before the handler began.
            Exception: Whatever the handler or the end of its transaction raised.
        """
        completed(self.acall(handler, event, envelope))

    async def acall(self, handler: EventHandler, event: object, envelope: Envelope) -> None:
        """Do what `call` does for an async handler."""
        application = self._applications[type(event), id(handler)]
        domain = DomainEvent.from_envelope(envelope)
        began = False

        def run(passed: object, connection: Any) -> Any:
            nonlocal began
            began = True
            return handler(passed, connection)

        try:
            await application.apply(domain, event, fingerprint_of(domain), handler=run)
        except Exception as error:
            if began or not isinstance(error, PostroadError):
                raise
            self._failed = application
            raise DatabaseFailed(str(error)) from error

    def check(self, on_loop: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Raise while the database cannot be used, if it failed since the last look.

        `on_loop` completes a coroutine on the loop of the async handlers.
        """
        if self._failed is not None:
            (on_loop if self._failed.is_async else completed)(self._failed.check())
            self._failed = None
