"""How a consumer handles an event: chosen by its type, its effect made once, in a transaction with the inbox row."""

from __future__ import annotations

import hashlib
import inspect
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from postroad import failpoints
from postroad.connections import in_async_transaction, in_transaction
from postroad.errors import (
    ConfigurationError,
    InvalidMessage,
    NotInTransaction,
    PostroadError,
    StorageFull,
    TransportError,
    Unavailable,
    UnknownEventType,
    describe,
)
from postroad.events import DomainEvent, codec, default_registry
from postroad.inbox.external import DEAD, DUPLICATES, IGNORED, Handler, Outside
from postroad.inbox.inbox import Inbox, refuse_ended
from postroad.queues import Delivery
from postroad.receiving import (
    Ack,
    Defer,
    HandlingContext,
    Outcome,
    Reject,
    completed,
    current_context,
    handling,
    is_async,
    log_traceback,
    name_of,
    outcome_of,
    read_envelope,
)
from postroad.telemetry import tracing

if TYPE_CHECKING:
    from postroad.inbox.consumer import ConsumerTelemetry

Transaction = Callable[[], AbstractContextManager[Any]] | Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transaction of the application: an asynchronous one if the handler is async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InDatabase:
    """Makes effects in the transaction of the inbox row. With a plain handler, its coroutines never wait."""

    name: str
    inbox: Inbox
    handler: Handler
    transaction: Transaction
    is_async: bool = False
    """Whether the handler is async, and so are the transactions."""
    proven: threading.Event = field(default_factory=threading.Event)
    """Set once a transaction was seen to commit."""

    async def apply(
        self, event: DomainEvent, passed: object, fingerprint: str, *, handler: Handler | None = None
    ) -> Outcome:
        """Make the effect unless it was made before, and return what to do with the message.

        `passed` is the event as the handler gets it. A handler that is given here takes the place of the usual one.
        """
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
                else:
                    _refuse_undone(returned)
                failpoints.hit("consumer.after_effect")
                refuse_ended(caller)
                ended = True
        except Exception as error:
            if begun or isinstance(error, PostroadError):
                raise
            # Before the handler began only the database can have failed, whatever its driver raises.
            raise Unavailable(f"the inbox cannot be written: {describe(error)}") from error
        await self._prove(event, ended=ended)
        failpoints.hit("consumer.after_commit")
        return Ack()

    async def check(self) -> None:
        """Raise while the inbox cannot be written."""
        async with self._opened() as connection:
            await self.inbox.try_to_write(connection, is_async=self.is_async)

    def _opened(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction; raise ConfigurationError if it is not of the kind that the handler needs."""
        opened: Any = self.transaction()
        needed, other = ("an asynchronous", "a plain") if self.is_async else ("a plain", "an asynchronous")
        if not hasattr(opened, "__aenter__" if self.is_async else "__enter__"):
            raise ConfigurationError(
                f"transaction: opens {other} connection, and the handler of {self.name!r} needs {needed} one",
                field="transaction",
                remedy="Give async handlers an asynchronous transaction, and plain functions a plain one.",
            )
        return cast(AbstractAsyncContextManager[Any], opened) if self.is_async else _entered(opened)

    async def _is_first(self, connection: Any, event: DomainEvent, fingerprint: str | None = None) -> bool:
        if self.is_async:
            return await self.inbox.first_time_async(connection, self.name, event.event_id, fingerprint=fingerprint)
        return self.inbox.first_time(connection, self.name, event.event_id, fingerprint=fingerprint)

    async def _prove(self, event: DomainEvent, *, ended: bool) -> None:
        """Raise if the application's transaction swallows errors or does not commit: an ack would lose the event."""
        if not ended:
            raise NotInTransaction(
                "transaction: swallowed an error", remedy="Let `transaction` roll back and raise the error again."
            )
        if not self.proven.is_set():
            async with self._opened() as connection:
                if await self._is_first(connection, event):
                    raise NotInTransaction(
                        "transaction: does not commit what was done in it",
                        remedy="Let it commit at its end, as SQLAlchemy's begin() does and connect() does not.",
                    )
            self.proven.set()


@asynccontextmanager
async def _entered(inner: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """Enter a plain context manager as if it were an asynchronous one."""
    with inner as connection:
        yield connection


def in_database(name: str, inbox: Inbox, handler: Handler, transaction: Transaction | None) -> InDatabase:
    """Make effects in the application's transactions, or in the inbox's own if it has none.

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
    """Raise ConfigurationError if the inbox needs connections of its own and has none."""
    if not inbox.owns_connections and (transaction is None or external):
        raise ConfigurationError(
            "inbox: has no connections of its own",
            field="inbox",
            remedy="Give the inbox a DSN or path, or give a `transaction`.",
        )


_TYPE = re.compile(r"[A-Za-z0-9._:-]{1,200}(\.\*)?")


@dataclass(frozen=True, slots=True)
class Choice:
    """Event types by their names and by their prefixes."""

    names: frozenset[str]
    prefixes: tuple[str, ...]
    classes: frozenset[str] = frozenset()
    """The names of the types that were given as classes."""

    def __contains__(self, event_type: str) -> bool:
        return event_type in self.names or event_type.startswith(self.prefixes)


def choose(types: Iterable[str | type] | None) -> Choice:
    """Return the choice of these types; None chooses all.

    A type is an event class or a name, of which `prefix.*` means all that begin with `prefix.`.
    """
    if types is None:
        return Choice(frozenset(), ("",))
    if isinstance(types, str | type):
        raise _refused(types)
    given = list(types)
    classes = frozenset(default_registry.register(each) for each in given if isinstance(each, type))
    names = [str(each) for each in given if not isinstance(each, type)]
    for each in names:
        if _TYPE.fullmatch(each) is None:
            raise _refused(each)
    if not given:
        raise _refused(given)
    prefixes = tuple(each.removesuffix("*") for each in names if each.endswith(".*"))
    return Choice(classes | {each for each in names if not each.endswith(".*")}, prefixes, classes)


def _refused(types: object) -> ConfigurationError:
    return ConfigurationError(
        f"types: {types!r} is not a list of types or prefixes",
        field="types",
        remedy="Give event classes, names such as 'orders.placed' or 'orders.*', or None for all.",
    )


_CALLS = 50
_REMEMBERED = 1_000
TOO_SHORT = "visibility_too_short"


class Timing:
    """The times of the latest calls of one handler, and the advice that follows from them."""

    def __init__(self, queue: str, visibility: float) -> None:
        self._queue = queue
        self._visibility = visibility
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._calls = 0
        self.advice: Mapping[str, str] = {}

    def add(self, seconds: float) -> bool:
        """Add one call, and return whether there is new advice; it is computed after every fifty calls."""
        with self._lock:
            self._seconds.append(seconds)
            self._calls += 1
            if self._calls % _CALLS:
                return False
            advised = bool(self.advice)
            slow = sorted(self._seconds)[max(0, -(-len(self._seconds) * 99 // 100) - 1)]
            self.advice = {}
            if self._visibility < 2 * slow:
                self.advice = {
                    TOO_SHORT: f"queue {self._queue!r} hides messages for {self._visibility:g} s, below twice the"
                    f" handler's p99 of {slow:.3g} s; set its visibility to {2 * slow:.3g} s or more"
                }
            return bool(self.advice) and not advised


def _refuse_undone(returned: object) -> None:
    """Raise TypeError for what nobody awaits or iterates: the work of the handler was not done."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if isinstance(returned, Coroutine | Generator):
            returned.close()
        kind = type(returned).__name__
        raise TypeError(f"handler: returned a {kind}; give a plain function that does its work")


_THE_DATABASE = (TransportError, ConfigurationError, StorageFull)


class Timed:
    """A handler whose calls are timed, each in a span of its own."""

    def __init__(self, handler: Handler, timing: Timing, telemetry: ConsumerTelemetry) -> None:
        self._handler, self._timing, self._telemetry = handler, timing, telemetry

    def __call__(self, event: object, given: object) -> Any:
        with self._measured():
            _refuse_undone(self._handler(event, given))

    @contextmanager
    def _measured(self) -> Iterator[None]:
        started = time.perf_counter()
        context = current_context()
        try:
            envelope = None if context is None else context.envelope
            with tracing.handling_by(
                self._handler,
                None if envelope is None else envelope.traceparent,
                queue=self._telemetry.queue,
                message_id=None if envelope is None else str(envelope.event_id),
            ):
                yield
        finally:
            seconds = time.perf_counter() - started
            self._telemetry.handler_seconds.observe(seconds)
            if self._timing.add(seconds):
                self._telemetry.warn(TOO_SHORT, advice=self._timing.advice[TOO_SHORT])


class AsyncTimed(Timed):
    """An async handler whose calls are timed."""

    async def __call__(self, event: object, given: object) -> None:
        with self._measured():
            await self._handler(event, given)


@dataclass(slots=True, kw_only=True)
class Decisions:
    """Decides what to do with the deliveries of one consumer."""

    choice: Choice
    application: InDatabase | Outside
    telemetry: ConsumerTelemetry
    database_failed: bool = False
    """Whether the database failed since this was last set to False."""

    def decide(self, delivery: Delivery) -> Outcome:
        """Make the effect of the event unless it was made before, and return what to do with the delivery."""
        return completed(self.adecide(delivery))

    async def adecide(self, delivery: Delivery) -> Outcome:
        """Do what `decide` does for an async handler."""
        try:
            envelope = read_envelope(codec, delivery)
            event = DomainEvent.from_envelope(envelope)
            if event.type not in self.choice:
                return Ack(label=IGNORED, about=event)
            passed = codec.unwrap(envelope) if event.type in self.choice.classes else event
        except (InvalidMessage, UnknownEventType) as error:
            return Reject("malformed", describe(error), label=DEAD)
        context = HandlingContext(envelope=envelope, receive_count=delivery.receive_count, remote=True, event=passed)
        try:
            with self.telemetry.in_handling.holding(event), handling(context):
                outcome = await self.application.apply(event, passed, fingerprint_of(event))
        except Exception as error:
            if isinstance(error, _THE_DATABASE):
                self.database_failed = True
            log_traceback(error, message_id=delivery.message_id)
            outcome = outcome_of(error)
            if isinstance(outcome, Reject):
                outcome = replace(outcome, label=DEAD)
        return outcome if isinstance(outcome, Defer) else replace(outcome, about=event)


def fingerprint_of(event: DomainEvent) -> str:
    """Return a hash of the event's content, the same for all copies of an event.

    The time is left out: if an event was recorded without one, each copy has its own.
    """
    content = msgspec.json.encode((event.type, event.tenant_id, event.key, event.payload))
    return hashlib.sha256(content).hexdigest()[:32]
