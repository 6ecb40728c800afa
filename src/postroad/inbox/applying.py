"""An event's effect: in one transaction with the inbox row, or outside, written down before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from postroad import failpoints
from postroad.connections.callers import in_transaction
from postroad.errors import NotInTransaction, PostroadError, Unavailable
from postroad.events import DomainEvent
from postroad.inbox.effects import Effect, EffectNotDone
from postroad.inbox.inbox import Inbox, refuse_ended
from postroad.inbox.renewing import Renewals
from postroad.queues.burying import describe

OnUnknown = Literal["dead_letter", "retry"]
Handler = Callable[[DomainEvent, Any], Any]
Transaction = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Ack:
    """Forget the message."""

    outcome: Literal["handled", "duplicates", "ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Let the message come again; `after` None lets the number of its receives say when."""

    outcome: Literal["failed", "released"]
    error: str | None = None
    after: float | None = None
    database: bool = False
    """Whether the database is at fault, not the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bury:
    """Put the message with the dead letters."""

    reason: Literal["malformed", "unknown-outcome"]
    error: str


Verdict = Ack | Again | Bury


class Application(Protocol):
    """How the effect of an event is made."""

    def apply(self, event: DomainEvent, fingerprint: str) -> Verdict:
        """Make the effect unless it was made before, and say what follows for the message."""
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

    def apply(self, event: DomainEvent, fingerprint: str) -> Verdict:
        begun = ended = False
        try:
            with self.transaction() as connection:
                if not self.inbox.first_time(connection, self.name, event.event_id, fingerprint=fingerprint):
                    return Ack("duplicates")
                caller, begun = in_transaction(connection), True
                self.handler(event, connection)
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
        return Ack("handled")

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

    def apply(self, event: DomainEvent, fingerprint: str) -> Verdict:
        effect = self.inbox.begin(self.name, event.event_id, lease=self.renewals.lease)
        if effect.status == "done":
            return Ack("duplicates")
        if effect.status == "busy":
            return Again(outcome="released", after=effect.retry_after, error="the effect is being made elsewhere")
        if effect.status == "unknown" and self.on_unknown == "dead_letter":
            self.inbox.abandon(effect)
            return Bury(reason="unknown-outcome", error=f"attempt {effect.attempt - 1} began and never ended")
        return self._make(event, effect)

    def check(self) -> None:
        self.inbox.check()

    def _make(self, event: DomainEvent, effect: Effect) -> Verdict:
        try:
            with self.renewals.kept(effect):
                self.handler(event, effect)
        except EffectNotDone as error:
            self.inbox.forget(effect)
            return Again(outcome="failed", error=describe(error))
        except BaseException:
            # Nobody knows how far it came; the next attempt must not have to wait to say so.
            with suppress(PostroadError):
                self.inbox.abandon(effect)
            raise
        failpoints.hit("consumer.after_effect")
        if not self.inbox.finish(effect):
            return Again(outcome="failed", error="a later attempt has taken the effect over")
        failpoints.hit("consumer.after_commit")
        return Ack("handled")
