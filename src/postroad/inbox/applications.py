"""An event's effect: in one transaction with the inbox row, or outside, written down before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, cast

from postroad import failpoints
from postroad.clock import Clock
from postroad.connections import in_async_transaction, in_transaction
from postroad.errors import ConfigurationError, NotInTransaction, PostroadError, Unavailable, describe
from postroad.events import DomainEvent
from postroad.inbox.inbox import Inbox, refuse_ended
from postroad.inbox.records import Effect, EffectNotDone
from postroad.receiving import Ack, Outcome, Reject, Retry, is_async, name_of, to_its_end

_SHORTEST = 1.0


class Renewals:
    """Renews every running effect when half of its lease is over.

    A lease takes half of the queue's visibility: after a crash it is over before the message comes again.
    """

    def __init__(self, inbox: Inbox, visibility: float, clock: Clock) -> None:
        self.lease = max(_SHORTEST, visibility / 2)
        self._inbox = inbox
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, Effect]] = {}
        self.wake: Callable[[], None] = lambda: None

    @contextmanager
    def kept(self, effect: Effect) -> Iterator[None]:
        """Keep the effect's lease alive inside the block."""
        with self._lock:
            self._running[effect.idempotency_key] = (self._monotonic() + self.lease / 2, effect)
        self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(effect.idempotency_key, None)

    def due(self) -> float | None:
        """When the next lease needs a renewal."""
        with self._lock:
            return min((due for due, _ in self._running.values()), default=None)

    def run(self) -> None:
        """Renew what is due. One that another attempt has taken over is let go; its handler's finish will tell."""
        now = self._monotonic()
        with self._lock:
            due = [effect for at, effect in self._running.values() if at <= now]
        for effect in due:
            kept = self._inbox.renew(effect, lease=self.lease)
            with self._lock:
                if effect.idempotency_key not in self._running:
                    continue
                if kept:
                    self._running[effect.idempotency_key] = (now + self.lease / 2, effect)
                else:
                    del self._running[effect.idempotency_key]


DUPLICATES, IGNORED, RELEASED, DEAD = "duplicates", "ignored", "released", "dead"
"""Labels of outcomes, which a `ConsumeReport` counts."""
T = TypeVar("T")
OnUnknown = Literal["dead_letter", "retry"]
Handler = Callable[[Any, Any], Any]
"""Gets the event, as a DomainEvent or an instance of its class, and the connection or effect."""
Transaction = Callable[[], AbstractContextManager[Any]] | Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transaction of the application: an asynchronous one where the handler is async."""


class Application(Protocol):
    """How the effect of an event is made. Where its handler is a plain function, nothing here is ever waited for."""

    async def apply(self, event: DomainEvent, passed: object, fingerprint: str) -> Outcome:
        """Make the effect unless it was made before, and return what follows for the message.

        `passed` is the event as the handler gets it.
        """
        ...

    async def check(self) -> None:
        """Answer quietly when effects can be written down now, else raise why not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InDatabase:
    """Effects in the transaction of the inbox row."""

    name: str
    inbox: Inbox
    handler: Handler
    transaction: Transaction
    is_async: bool = False
    """Whether the handler is async, and so are the transactions."""
    proven: threading.Event = field(default_factory=threading.Event)
    """Set once a transaction was seen to keep what was done in it."""

    async def apply(
        self, event: DomainEvent, passed: object, fingerprint: str, *, handler: Handler | None = None
    ) -> Outcome:
        """Make the effect by the handler, or by the one that is given in its place."""
        begun = ended = False
        try:
            async with self._opened() as connection:
                if not await self._is_first(connection, event, fingerprint):
                    return Ack(label=DUPLICATES)
                caller = await in_async_transaction(connection) if self.is_async else in_transaction(connection)
                begun = True
                returned = (handler or self.handler)(passed, connection)
                if self.is_async:
                    await returned
                failpoints.hit("consumer.after_effect")
                refuse_ended(caller)
                ended = True
        except Exception as error:
            if begun or isinstance(error, PostroadError):
                raise
            # Before the handler began, only the database can be at fault, whatever its driver raises.
            raise Unavailable(f"the inbox cannot be written: {describe(error)}") from error
        await self._prove(event, ended=ended)
        failpoints.hit("consumer.after_commit")
        return Ack()

    async def check(self) -> None:
        async with self._opened() as connection:
            if self.is_async:
                await self.inbox.try_to_write_async(connection)
            else:
                self.inbox.try_to_write(connection)

    def _opened(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction of the kind that the handler needs.

        Raises:
            ConfigurationError: It is of the other kind.
        """
        opened: Any = self.transaction()
        needed, other = ("an asynchronous", "a plain") if self.is_async else ("a plain", "an asynchronous")
        if not hasattr(opened, "__aenter__" if self.is_async else "__enter__"):
            raise ConfigurationError(
                f"transaction: opens {other} connection, and the handler of {self.name!r} needs {needed} one",
                field="transaction",
                remedy="Give async handlers an asynchronous transaction, and plain functions a plain one.",
            )
        return cast(AbstractAsyncContextManager[Any], opened) if self.is_async else _Entered(opened)

    async def _is_first(self, connection: Any, event: DomainEvent, fingerprint: str | None = None) -> bool:
        if self.is_async:
            return await self.inbox.first_time_async(connection, self.name, event.event_id, fingerprint=fingerprint)
        return self.inbox.first_time(connection, self.name, event.event_id, fingerprint=fingerprint)

    async def _prove(self, event: DomainEvent, *, ended: bool) -> None:
        """Raise when the application's transaction swallows errors or does not commit: an ack would lose the event."""
        if not ended:
            raise NotInTransaction(
                "transaction: swallowed an error", remedy="Let `transaction` roll back and raise the error again."
            )
        if not self.proven.is_set():
            async with self._opened() as connection:
                if await self._is_first(connection, event):
                    raise NotInTransaction(
                        "transaction: what was done in it is not kept",
                        remedy="Let it commit at its end, as SQLAlchemy's begin() does and connect() does not.",
                    )
            self.proven.set()


@dataclass(frozen=True, slots=True)
class _Entered:
    """A plain context manager where an asynchronous one is written."""

    inner: AbstractContextManager[Any]

    async def __aenter__(self) -> Any:
        return self.inner.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return self.inner.__exit__(kind, error, tb)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Effects that no transaction covers, fenced by tokens."""

    name: str
    inbox: Inbox
    handler: Handler
    on_unknown: OnUnknown
    renewals: Renewals
    is_async: bool = False
    """Whether the handler is async; the inbox, which is not, is then used in threads."""

    async def apply(self, event: DomainEvent, passed: object, fingerprint: str) -> Outcome:
        effect = await self._run(self._begin, event)
        if not isinstance(effect, Effect):
            return effect
        try:
            with self.renewals.kept(effect):
                returned = self.handler(passed, effect)
                if self.is_async:
                    await returned
        except EffectNotDone as error:
            await self._run(self.inbox.forget, effect)
            return Retry(error=describe(error))
        except BaseException:
            # Nobody knows how far it came; the next attempt must not have to wait to say so.
            with suppress(PostroadError):
                await self._run(self.inbox.abandon, effect)
            raise
        failpoints.hit("consumer.after_effect")
        if not await self._run(self.inbox.finish, effect):
            return Retry(error="a later attempt has taken the effect over")
        failpoints.hit("consumer.after_commit")
        return Ack()

    async def check(self) -> None:
        await self._run(self.inbox.check)

    def _begin(self, event: DomainEvent) -> Effect | Outcome:
        effect = self.inbox.begin(self.name, event.event_id, lease=self.renewals.lease)
        if effect.status == "done":
            return Ack(label=DUPLICATES)
        if effect.status == "busy":
            return Retry(effect.retry_after, "the effect is being made elsewhere", label=RELEASED)
        if effect.status == "unknown" and self.on_unknown == "dead_letter":
            self.inbox.abandon(effect)
            return Reject("unknown-outcome", f"attempt {effect.attempt - 1} began and never ended", label=DEAD)
        return effect

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await to_its_end(function, *arguments) if self.is_async else function(*arguments)


def in_database(name: str, inbox: Inbox, handler: Handler, transaction: Transaction | None) -> InDatabase:
    """Return effects in the application's transactions, or in the inbox's own where it gives none.

    Raises:
        ConfigurationError: The handler is async, and the inbox's own transactions are not.
    """
    asynchronous = is_async(handler)
    if asynchronous and transaction is None:
        raise ConfigurationError(
            f"transaction: is missing, and {name_of(handler)} is async",
            field="transaction",
            remedy="Give a function that opens an asynchronous transaction, such as pool.connection of psycopg's"
            " AsyncConnectionPool or begin of SQLAlchemy's AsyncEngine; or write the handler as a plain function.",
        )
    made = InDatabase(
        name=name, inbox=inbox, handler=handler, transaction=transaction or inbox.transaction, is_async=asynchronous
    )
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
