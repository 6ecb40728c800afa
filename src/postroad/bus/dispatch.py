"""What a bus does with a delivery: read it, recognise repeats, and call its handlers, each in its own inbox if any."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from postroad.bus.config import HandlerLimits, SQSEventBusConfig, Unhandled
from postroad.bus.deduplication import Done, Failure, Memory
from postroad.bus.local import EventBus, EventHandler, InProcessEventBus, PublishResult
from postroad.bus.telemetry import BusTelemetry
from postroad.errors import ConfigurationError, InvalidMessage, PostroadError, describe
from postroad.events import Codec, DomainEvent, Envelope
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
from postroad.queues import Delivery
from postroad.receiving import (
    HANDLER_FAILED,
    Ack,
    HandlingContext,
    Outcome,
    Reject,
    Retry,
    completed,
    current_work,
    handling,
    in_thread,
    is_async,
    log_traceback,
    name_of,
    read_envelope,
)
from postroad.telemetry import tracing


class DatabaseFailed(Exception):
    """The database failed before a handler began; its cause says how."""


class InboxHandlers:
    """The handlers of one bus, each with the name under which the inbox records what it has done."""

    def __init__(self, inbox: Inbox, prefix: str, *, transaction: Transaction | None, windows: Windows) -> None:
        check_windows(inbox.retention, windows)
        check_connections(inbox, transaction)
        self._inbox, self._prefix, self._transaction = inbox, prefix, transaction
        self._lock = threading.Lock()
        self._applications: dict[tuple[type, int], InDatabase] = {}
        self._failed: InDatabase | None = None
        """The handler before which the database failed."""

    def add(self, event_type: type, handler: EventHandler, name: str | None) -> None:
        """Add a handler.

        Raises:
            ConfigurationError: It is async and there is no `transaction`, or another handler of this type has its name.
        """
        full_name, own = f"{self._prefix}/{name or name_of(handler)}", (event_type, id(handler))
        with self._lock:
            for key, other in self._applications.items():
                if key[0] is event_type and key != own and other.name == full_name:
                    raise ConfigurationError(
                        f"name: {full_name!r} is another handler of {event_type.__qualname__}",
                        field="name",
                        remedy="Give each handler its own name, as in @bus.on(OrderPlaced, name='ledger').",
                    )
            self._applications[own] = in_database(full_name, self._inbox, handler, self._transaction)

    async def acall(self, handler: EventHandler, event: object, envelope: Envelope) -> None:
        """Run the handler with a connection in its transaction, unless it has handled this event before.

        Raises:
            DatabaseFailed: The database failed before the handler began.
            Exception: The error of the handler, or of the end of its transaction.
        """
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
        """Raise while the database cannot be used, if it failed since the last check.

        `on_loop` runs a coroutine on the loop of the async handlers.
        """
        if self._failed is not None:
            (on_loop if self._failed.is_async else completed)(self._failed.check())
            self._failed = None


Wanted = Callable[[Delivery, Envelope], bool]
Limits = Mapping[tuple[type, int], HandlerLimits]
"""The limits of handlers that have their own, by the type of the event and the id of the handler."""
_NO_LIMITS = HandlerLimits()


@dataclass(frozen=True, slots=True)
class Handled:
    """What an outcome is about, for the log and the counters."""

    envelope: Envelope
    event: Any = None
    """The event, if it was handled."""
    handler: str | None = None
    """The handler that failed."""


@dataclass(slots=True)
class _Ready:
    """An event that was read and has to be handled."""

    delivery: Delivery
    envelope: Envelope
    event: Any
    context: HandlingContext
    result: PublishResult | None = None
    """The result of a bus of another kind."""


_Call = Callable[[EventHandler | None, _Ready], Awaitable[Exception | None]]
"""Calls a handler and returns its error."""


@dataclass(slots=True, kw_only=True)
class Dispatch:
    """Decides about the deliveries of one bus."""

    codec: Codec
    config: SQSEventBusConfig
    local: EventBus
    memory: Memory
    wanted: Wanted | None
    """Returns whether the bus asked for an event; None if it asked for all."""
    allows: Callable[[type], bool] | None
    """Returns whether events of a type may be received; None if all may."""
    unhandled: Unhandled
    max_receives: int | None
    """After how many attempts an event without a handler is rejected; None if there are no dead letters."""
    attempt: Callable[[Delivery], int]
    telemetry: BusTelemetry
    limits: Limits
    inbox: InboxHandlers | None = None
    """Runs handlers whose effects happen once; None if they are called directly."""

    def decide(self, delivery: Delivery) -> Outcome:
        """Run the handlers that have to run, and return the outcome for the message."""
        return completed(self._decide(delivery, self._call))

    async def adecide(self, delivery: Delivery) -> Outcome:
        """Do what `decide` does on an event loop: async handlers are awaited on it, others run in threads."""
        return await self._decide(delivery, self._acall)

    async def _decide(self, delivery: Delivery, call: _Call) -> Outcome:
        ready = self._read(delivery)
        if not isinstance(ready, _Ready):
            return ready
        event_id, about = ready.envelope.event_id, Handled(ready.envelope)
        if self.config.enable_deduplication and not self.memory.handled.begin(event_id):
            if self.memory.handled.seen(event_id):
                return Ack(label="duplicate", about=about)
            # If this copy were acked and the other one failed, the event would be lost.
            return Retry(error="another copy is being handled", label="duplicate", about=about)
        done = False
        try:
            with handling(ready.context):
                outcome = await self._handle(ready, call)
            done = isinstance(outcome, Ack) and outcome.label is None
            return outcome
        finally:
            if done:
                self.memory.forget(event_id)
                self.memory.handled.mark_seen(event_id)
            else:
                self.memory.handled.forget(event_id)

    def _read(self, delivery: Delivery) -> Outcome | _Ready:
        """Read the event, or return the outcome if it needs no handler."""
        try:
            envelope = read_envelope(self.codec, delivery)
            self.telemetry.log("bus_received", envelope, receive_count=delivery.receive_count)
        except InvalidMessage as error:
            self.telemetry.log("bus_received", message_id=delivery.message_id, receive_count=delivery.receive_count)
            # An error without a field means that the bytes are not a message at all.
            return Reject("undecodable" if error.field is None else "invalid", describe(error), label="invalid")
        event_type = self.codec.registry.find(envelope.event_type)
        if event_type is None:
            why = f"UnknownEventType: {envelope.event_type[:200]!r} is not registered"
            return Reject("unknown_type", why, label="invalid", about=Handled(envelope))
        refused = self.allows is not None and not self.allows(event_type)
        if refused or (self.wanted is not None and not self.wanted(delivery, envelope)):
            return self._unhandled(delivery, envelope)
        if self.config.echo != "dispatch" and self.memory.published.seen(envelope.event_id):
            outcome = Ack if self.config.echo == "settle" else Retry
            return outcome(label="echo", about=Handled(envelope))
        if self.config.enable_deduplication and self.memory.handled.seen(envelope.event_id):
            return Ack(label="duplicate", about=Handled(envelope))
        try:
            event = self.codec.unwrap(envelope)
        except Exception as error:
            return Reject("invalid", describe(error), label="invalid", about=Handled(envelope))
        if isinstance(self.local, InProcessEventBus) and not self.local.handlers(type(event)):
            return self._unhandled(delivery, envelope)
        receives = delivery.receive_count
        context = HandlingContext(envelope=envelope, receive_count=receives, remote=True, event=event)
        return _Ready(delivery, envelope, event, context)

    async def _handle(self, ready: _Ready, call: _Call) -> Outcome:
        """Call each handler that has to run, and return the outcome for the message."""
        envelope = ready.envelope
        if not isinstance(self.local, InProcessEventBus):
            # A bus of another kind calls its handlers itself.
            await call(None, ready)
            result = ready.result
            assert result is not None
            if not result.handlers_invoked and result.ok:
                return self._unhandled(ready.delivery, envelope)
            if not result.errors:
                return Ack(about=Handled(envelope, ready.event))
            return _failed(ready, (result.errors[0].handler, describe(result.errors[0].error)))
        succeeded: list[Done] = []
        failed: list[Failure] = []
        handlers, given_up = self._remaining(ready)
        for handler in handlers:
            if (work := current_work()) is not None and work.is_over:
                self.memory.note_done(envelope.event_id, succeeded)
                return Retry(0.0, label="interrupted", about=Handled(envelope))
            error = await call(handler, ready)
            if isinstance(error, DatabaseFailed):
                # The handler did not begin, so it did not fail; the receiver waits until the database is back.
                self.memory.note_done(envelope.event_id, succeeded)
                return Retry(error=describe(error.__cause__ or error), label="database", about=Handled(envelope))
            if error is None:
                succeeded.append((handler, None))
            else:
                log_traceback(error, part="bus", line="bus_handler_traceback", handler=name_of(handler))
                failed.append((handler, describe(error)))
        if not failed and not given_up:
            return Ack(about=Handled(envelope, ready.event))
        self.memory.note_done(envelope.event_id, succeeded)
        return self._retry(ready, failed, given_up)

    def _remaining(self, ready: _Ready) -> tuple[list[EventHandler], list[Failure]]:
        """Return the handlers that have to run now, and the failures of those that have used up their attempts."""
        assert isinstance(self.local, InProcessEventBus)
        handlers = self.local.handlers(type(ready.event))
        left, given_up = self.memory.remaining(ready.envelope.event_id, handlers)
        if given_up and self.attempt(ready.delivery) == 1:
            # The event was redriven meanwhile.
            self.memory.forget_given_up(ready.envelope.event_id)
            left, given_up = self.memory.remaining(ready.envelope.event_id, handlers)
        return left, given_up

    def _retry(self, ready: _Ready, failed: Sequence[Failure], given_up: Sequence[Failure]) -> Outcome:
        """Retry the event while a handler that failed has attempts left; then it becomes a dead letter."""
        attempt, event_id = self.attempt(ready.delivery), ready.envelope.event_id
        limits = [self.limits.get((type(ready.event), id(handler)), _NO_LIMITS) for handler, _ in failed]
        # Without dead letters an event is retried until its handlers succeed.
        needs = [self.max_receives is None or attempt < each.most(self.config) for each in limits]
        needing = list(compress(failed, needs))
        if not needing:
            self.memory.forget_given_up(event_id)
            handler, error = (*given_up, *failed)[0]
            return Reject(HANDLER_FAILED, error, about=Handled(ready.envelope, handler=name_of(handler)))
        self.memory.note_done(event_id, [each for each, needed in zip(failed, needs, strict=True) if not needed])
        return replace(
            _failed(ready, needing[0]),
            after=max(each.delay(self.config, attempt) for each in compress(limits, needs)),
            max_attempts=max(each.most(self.config) for each in compress(limits, needs)),
        )

    async def _call(self, handler: EventHandler | None, ready: _Ready) -> Exception | None:
        """Call a plain handler on this thread, or have an async one awaited elsewhere; return its error."""
        if handler is None:
            ready.result = self.local.publish(ready.event)
            return None
        try:
            with tracing.handling_by(handler, ready.envelope.traceparent):
                if self.inbox is not None:
                    completed(self.inbox.acall(handler, ready.event, ready.envelope))
                elif (found := handler(ready.event)) is not None and isinstance(self.local, InProcessEventBus):
                    self.local.finish(found)
        except Exception as error:
            return error
        return None

    async def _acall(self, handler: EventHandler | None, ready: _Ready) -> Exception | None:
        if handler is None or not is_async(handler):
            return await in_thread(lambda: completed(self._call(handler, ready)))
        try:
            with tracing.handling_by(handler, ready.envelope.traceparent):
                if self.inbox is None:
                    await handler(ready.event)
                else:
                    await self.inbox.acall(handler, ready.event, ready.envelope)
        except Exception as error:
            return error
        return None

    def _unhandled(self, delivery: Delivery, envelope: Envelope) -> Outcome:
        about = Handled(envelope)
        if self.unhandled == "ack":
            return Ack(label="unhandled", about=about)
        why = f"no handler here takes {envelope.event_type}"
        tried = self.max_receives is not None and self.attempt(delivery) >= self.max_receives
        if tried or self.unhandled == "dead_letter":
            return Reject("unhandled", why, label="unhandled", about=about)
        return Retry(error=why, label="unhandled", about=about)


def _failed(ready: _Ready, failure: Failure) -> Retry:
    handler, error = failure
    return Retry(error=error, about=Handled(ready.envelope, handler=name_of(handler)))
