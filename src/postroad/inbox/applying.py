"""An event's effect: in one transaction with the inbox row, or outside, written down before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from postroad import failpoints
from postroad.connections.callers import in_transaction
from postroad.errors import ConfigurationError, NotInTransaction, PostroadError, Unavailable
from postroad.errors.root import describe
from postroad.events import DomainEvent
from postroad.inbox.effects import Effect, EffectNotDone
from postroad.inbox.inbox import Inbox, refuse_ended
from postroad.inbox.renewing import Renewals
from postroad.receiving import Ack, Outcome, Reject, Retry

DUPLICATES, IGNORED, RELEASED, DEAD = "duplicates", "ignored", "released", "dead"
"""Labels of outcomes, which a `ConsumeReport` counts."""
OnUnknown = Literal["dead_letter", "retry"]
Handler = Callable[[Any, Any], Any]
"""Gets the event, as a DomainEvent or an instance of its class, and the connection or effect."""
Transaction = Callable[[], AbstractContextManager[Any]]


class Application(Protocol):
    """How the effect of an event is made."""

    def apply(self, event: DomainEvent, passed: object, fingerprint: str) -> Outcome:
        """Make the effect unless it was made before, and return what follows for the message.

        `passed` is the event as the handler gets it.
        """
        ...

    def check(self) -> None:
        """Answer quietly when effects can be written down now, else raise why not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InDatabase:
    """Effects in the transaction of the inbox row."""

    name: str
    inbox: Inbox
    handler: Handler
    transaction: Transaction
    proven: threading.Event = field(default_factory=threading.Event)
    """Set once a transaction was seen to keep what was done in it."""

    def apply(self, event: DomainEvent, passed: object, fingerprint: str, *, handler: Handler | None = None) -> Outcome:
        """Make the effect by the handler, or by the one that is given in its place."""
        begun = ended = False
        try:
            with self.transaction() as connection:
                if not self.inbox.first_time(connection, self.name, event.event_id, fingerprint=fingerprint):
                    return Ack(label=DUPLICATES)
                caller, begun = in_transaction(connection), True
                (handler or self.handler)(passed, connection)
                failpoints.hit("consumer.after_effect")
                refuse_ended(caller)
                ended = True
        except Exception as error:
            if begun or isinstance(error, PostroadError):
                raise
            # Before the handler began, only the database can be at fault, whatever its driver raises.
            raise Unavailable(f"the inbox cannot be written: {describe(error)}") from error
        self._prove(event, ended=ended)
        failpoints.hit("consumer.after_commit")
        return Ack()

    def check(self) -> None:
        with self.transaction() as connection:
            self.inbox.try_to_write(connection)

    def _prove(self, event: DomainEvent, *, ended: bool) -> None:
        """Raise when the application's transaction swallows errors or does not commit: an ack would lose the event."""
        if not ended:
            raise NotInTransaction(
                "transaction: swallowed an error", remedy="Let `transaction` roll back and raise the error again."
            )
        if not self.proven.is_set():
            with self.transaction() as connection:
                if self.inbox.first_time(connection, self.name, event.event_id):
                    raise NotInTransaction(
                        "transaction: what was done in it is not kept",
                        remedy="Let it commit at its end, as SQLAlchemy's begin() does and connect() does not.",
                    )
            self.proven.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Effects that no transaction covers, fenced by tokens."""

    name: str
    inbox: Inbox
    handler: Handler
    on_unknown: OnUnknown
    renewals: Renewals

    def apply(self, event: DomainEvent, passed: object, fingerprint: str) -> Outcome:
        effect = self.inbox.begin(self.name, event.event_id, lease=self.renewals.lease)
        if effect.status == "done":
            return Ack(label=DUPLICATES)
        if effect.status == "busy":
            return Retry(effect.retry_after, "the effect is being made elsewhere", label=RELEASED)
        if effect.status == "unknown" and self.on_unknown == "dead_letter":
            self.inbox.abandon(effect)
            return Reject("unknown-outcome", f"attempt {effect.attempt - 1} began and never ended", label=DEAD)
        return self._make(passed, effect)

    def check(self) -> None:
        self.inbox.check()

    def _make(self, passed: object, effect: Effect) -> Outcome:
        try:
            with self.renewals.kept(effect):
                self.handler(passed, effect)
        except EffectNotDone as error:
            self.inbox.forget(effect)
            return Retry(error=describe(error))
        except BaseException:
            # Nobody knows how far it came; the next attempt must not have to wait to say so.
            with suppress(PostroadError):
                self.inbox.abandon(effect)
            raise
        failpoints.hit("consumer.after_effect")
        if not self.inbox.finish(effect):
            return Retry(error="a later attempt has taken the effect over")
        failpoints.hit("consumer.after_commit")
        return Ack()


def in_database(name: str, inbox: Inbox, handler: Handler, transaction: Transaction | None) -> InDatabase:
    """Return effects in the application's transactions, or in the inbox's own where it gives none."""
    made = InDatabase(name=name, inbox=inbox, handler=handler, transaction=transaction or inbox.transaction)
    if transaction is None:
        made.proven.set()
    return made


def check_connections(inbox: Inbox, transaction: Transaction | None, *, external: bool = False) -> None:
    """Refuse an inbox without connections of its own where it needs them."""
    if not inbox.owns_connections and (transaction is None or external):
        raise ConfigurationError(
            "inbox: has no connections of its own",
            field="inbox",
            remedy="Give the inbox a DSN or path, or give a `transaction`.",
        )
