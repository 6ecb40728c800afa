"""What a bus does with a delivery: read it, recognise repeats, and call its handlers, each in its own inbox if any."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from postroad import receiving
from postroad.bus.config import BusConfig, Unhandled
from postroad.bus.deduplication import Done, Memory
from postroad.bus.endpoints import Inlet
from postroad.bus.local import EventBus, InProcessEventBus
from postroad.bus.subscriptions import Subscription
from postroad.bus.telemetry import BusTelemetry
from postroad.clock import Clock
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
from postroad.queues import Delivery, legible
from postroad.receiving import HANDLER_FAILED, STOPPED, Ack, Defer, HandlingContext, Outcome, Reject, Retry
from postroad.telemetry import tracing

# How long members that do not handle a type leave its events to others without counting their receives; in a FIFO
# queue, where the events behind it wait too, and else.
_DEPLOY_SECONDS_IN_ORDER, _DEPLOY_SECONDS = 120.0, 900.0
_LEAST_PAUSE, _LONGEST_PAUSE = 0.1, 120.0


class DatabaseFailed(Exception):
    """The database failed before a handler began; its cause says how."""


class Released(Exception):
    """Raised by a handler that gives the event back: it has neither handled it nor failed."""


class InboxHandlers:
    """The handlers of one bus, each with the name under which the inbox records what it has done."""

    def __init__(self, inbox: Inbox, prefix: str, *, transaction: Transaction | None, windows: Windows) -> None:
        check_windows(inbox.retention, windows)
        check_connections(inbox, transaction)
        self._inbox, self._prefix, self._transaction = inbox, prefix, transaction
        self._applications: dict[Subscription, InDatabase] = {}
        self._failed: InDatabase | None = None
        """The handler before which the database failed."""

    def add(self, subscription: Subscription, clashing: Iterable[Subscription]) -> None:
        """Add a handler; `clashing` are the other handlers that get some of its events.

        Raises:
            ConfigurationError: It is async and there is no `transaction`, or one of the others has its name.
        """
        for other in clashing:
            if other.name == subscription.name and other.handler != subscription.handler:
                raise ConfigurationError(
                    f"name: {subscription.name!r} is the name of another handler of the same events",
                    field="name",
                    remedy="Give each handler its own name, as in @bus.on(OrderPlaced, name='ledger').",
                )
        full_name = f"{self._prefix}/{subscription.name}"
        self._applications[subscription] = in_database(full_name, self._inbox, subscription.handler, self._transaction)

    async def acall(self, subscription: Subscription, event: object, envelope: Envelope) -> None:
        """Run the handler with a connection in its transaction, unless it has handled this event before.

        Raises:
            DatabaseFailed: The database failed before the handler began.
            Exception: The error of the handler, or of the end of its transaction.
        """
        application = self._applications[subscription]
        domain = DomainEvent.from_envelope(envelope)
        began = False

        def run(passed: object, connection: Any) -> Any:
            nonlocal began
            began = True
            found = subscription.call(passed, connection)
            # A plain middleware around an async handler may have left it out.
            return receiving.settled(found) if application.is_async else found

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
            (on_loop if self._failed.is_async else receiving.completed)(self._failed.check())
            self._failed = None


Wanted = Callable[[Delivery, Envelope], bool]


@dataclass(frozen=True, slots=True)
class Handled:
    """What an outcome is about, for the log and the counters."""

    envelope: Envelope
    event: Any = None
    """The event, if it was handled."""
    handler: str | None = None
    """The handler that failed."""


@dataclass(frozen=True, slots=True)
class _Ready:
    delivery: Delivery
    envelope: Envelope
    event: Any
    context: HandlingContext


@dataclass(frozen=True, slots=True)
class _Failure:
    """A handler that failed now, and what its error asks for."""

    subscription: Subscription
    outcome: Retry | Reject

    @property
    def done(self) -> Done:
        """The failure as the memory keeps it, once the handler has given up."""
        outcome = self.outcome
        reason = outcome.reason if isinstance(outcome, Reject) else HANDLER_FAILED
        return Done(self.subscription.handler, outcome.error, reason, self.subscription.name)

    def needs(self, config: BusConfig, attempt: int, *, has_end: bool) -> bool:
        return isinstance(self.outcome, Retry) and (not has_end or attempt < self.subscription.limits.most(config))

    def delay(self, config: BusConfig, attempt: int) -> float:
        """Return the seconds until the next attempt: those that the error asks for, else those of the limits."""
        after = self.outcome.after
        return self.subscription.limits.delay(config, attempt) if after is None else after


_Call = Callable[[Subscription, _Ready], Awaitable[Exception | None]]
"""Calls a handler and returns its error."""


@dataclass(slots=True, kw_only=True)
class Dispatch:
    """Decides about the deliveries of one bus."""

    codec: Codec
    config: BusConfig
    local: EventBus
    memory: Memory
    wanted: Wanted | None
    """Returns whether the bus asked for an event; None if it asked for all."""
    inlet: Inlet
    clock: Clock
    allows: Callable[[type], bool] | None
    """Returns whether events of a type may be received; None if all may."""
    unhandled: Unhandled
    max_receives: int | None
    """After how many attempts an event without a handler is rejected; None if there are no dead letters."""
    attempt: Callable[[Delivery], int]
    telemetry: BusTelemetry
    inbox: InboxHandlers | None = None
    """Runs handlers whose effects happen once; None if they are called directly."""

    def decide(self, delivery: Delivery) -> Outcome:
        """Run the handlers that have to run, and return the outcome for the message."""
        return receiving.completed(self._decide(delivery, self._call))

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
            with receiving.handling(ready.context):
                outcome = await self._handle(ready, call)
            done = isinstance(outcome, Ack) and outcome.label is None
            return outcome
        finally:
            if done:
                self.memory.forget(event_id)
                self.memory.handled.mark_seen(event_id)
            else:
                self.memory.handled.forget(event_id)

    def _log_received(self, delivery: Delivery, envelope: Envelope | None, **fields: Any) -> None:
        attempt, queue = delivery.receive_count, self.telemetry.queue
        self.telemetry.log("bus_received", envelope, receive_count=attempt, attempt=attempt, queue=queue, **fields)

    def _span(self, subscription: Subscription, ready: _Ready) -> AbstractContextManager[object]:
        return tracing.handling_by(
            subscription.handler,
            ready.envelope.traceparent,
            queue=self.telemetry.queue,
            message_id=str(ready.envelope.event_id),
        )

    def _read(self, delivery: Delivery) -> Outcome | _Ready:
        """Read the event, or return the outcome if it needs no handler."""
        try:
            envelope = receiving.read_envelope(self.codec, delivery)
            self._log_received(delivery, envelope)
        except InvalidMessage as error:
            self._log_received(delivery, None, message_id=delivery.message_id)
            # An error without a field means that the bytes are not a message at all.
            return Reject("undecodable" if error.field is None else "invalid", describe(error), label="invalid")
        if self.wanted is not None and not self.wanted(delivery, envelope):
            return self._unhandled(delivery, envelope)
        event_type = self.codec.registry.find(envelope.event_type)
        if event_type is None and not self.inlet.is_shared(envelope.event_type, False):
            why = f"UnknownEventType: {envelope.event_type[:200]!r} is not registered"
            return Reject("unknown_type", why, label="invalid", about=Handled(envelope))
        if event_type is None or (self.allows is not None and not self.allows(event_type)):
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
        if isinstance(self.local, InProcessEventBus) and not self.local.subscriptions(type(event)):
            return self._unhandled(delivery, envelope)
        receives = delivery.receive_count
        context = HandlingContext(envelope=envelope, receive_count=receives, remote=True, event=event)
        return _Ready(delivery, envelope, event, context)

    async def _handle(self, ready: _Ready, call: _Call) -> Outcome:
        envelope = ready.envelope
        if not isinstance(self.local, InProcessEventBus):
            # A bus of another kind calls its handlers itself. They are plain functions as far as we know.
            result = self.local.publish(ready.event)
            if not result.handlers_invoked and result.ok:
                return self._unhandled(ready.delivery, envelope)
            if not result.errors:
                return Ack(about=Handled(envelope, ready.event))
            failure = result.errors[0]
            return replace(
                receiving.outcome_of(failure.error), about=Handled(envelope, handler=receiving.name_of(failure.handler))
            )
        succeeded: list[Done] = []
        failed: list[_Failure] = []
        subscriptions, given_up = self._remaining(ready)
        for each in subscriptions:
            if (work := receiving.current_work()) is not None and work.is_over:
                self.memory.note_done(envelope.event_id, succeeded)
                return Retry(0.0, label=STOPPED, about=Handled(envelope))
            began = time.perf_counter()
            error = await call(each, ready)
            self.telemetry.timed(each.name, time.perf_counter() - began)
            if isinstance(error, DatabaseFailed | Released):
                # The handler did not fail. If the database did, the receiver waits until it is back.
                self.memory.note_done(envelope.event_id, succeeded)
                if isinstance(error, Released):
                    return Retry(0.0, label="interrupted", about=Handled(envelope))
                return Retry(error=describe(error.__cause__ or error), label="database", about=Handled(envelope))
            if error is None:
                succeeded.append(Done(each.handler))
            else:
                receiving.log_traceback(error, part="bus", line="bus_handler_traceback", handler=each.name)
                failed.append(_Failure(each, receiving.outcome_of(error)))
        if not failed and not given_up:
            return Ack(about=Handled(envelope, ready.event))
        self.memory.note_done(envelope.event_id, succeeded)
        return self._retry(ready, failed, given_up)

    def _remaining(self, ready: _Ready) -> tuple[list[Subscription], list[Done]]:
        """Return the handlers that have to run now, and those that have given up."""
        assert isinstance(self.local, InProcessEventBus)
        subscriptions = self.local.subscriptions(type(ready.event))
        left, given_up = self.memory.remaining(ready.envelope.event_id, subscriptions)
        if given_up and self.attempt(ready.delivery) == 1:
            # The event was redriven meanwhile.
            self.memory.forget_given_up(ready.envelope.event_id)
            left, given_up = self.memory.remaining(ready.envelope.event_id, subscriptions)
        return left, given_up

    def _retry(self, ready: _Ready, failed: Sequence[_Failure], given_up: Sequence[Done]) -> Outcome:
        """Retry the event while a handler that failed has attempts left; then it becomes a dead letter."""
        attempt, event_id = self.attempt(ready.delivery), ready.envelope.event_id
        # Without dead letters an event is retried until its handlers succeed.
        has_end = self.max_receives is not None
        needing = [each for each in failed if each.needs(self.config, attempt, has_end=has_end)]
        ended = [each.done for each in failed if each not in needing]
        if not needing:
            self.memory.forget_given_up(event_id)
            first = (*given_up, *ended)[0]
            self._log_others(ready.envelope, failed, first.name)
            about = Handled(ready.envelope, handler=first.name)
            delay = max((each.delay(self.config, attempt) for each in failed), default=None)
            return Reject(first.reason, first.error, after=delay, about=about)
        self.memory.note_done(event_id, ended)
        self._log_others(ready.envelope, failed, needing[0].subscription.name)
        return Retry(
            max(each.delay(self.config, attempt) for each in needing),
            needing[0].outcome.error,
            about=Handled(ready.envelope, handler=needing[0].subscription.name),
            max_attempts=max(each.subscription.limits.most(self.config) for each in needing),
        )

    def _log_others(self, envelope: Envelope, failed: Sequence[_Failure], told: str | None) -> None:
        """Log the failures that the line about the event does not tell, because it names one handler."""
        for each in failed:
            if each.subscription.name != told:
                error = legible(each.outcome.error or "")
                self.telemetry.log("bus_handler_failed", envelope, handler=each.subscription.name, error=error)

    async def _call(self, subscription: Subscription, ready: _Ready) -> Exception | None:
        """Call a plain handler on this thread, or have an async one awaited elsewhere; return its error."""
        try:
            with self._span(subscription, ready):
                if self.inbox is not None:
                    receiving.completed(self.inbox.acall(subscription, ready.event, ready.envelope))
                elif (found := subscription.call(ready.event)) is not None:
                    assert isinstance(self.local, InProcessEventBus)
                    self.local.finish(found)
        except Exception as error:
            return error
        return None

    async def _acall(self, subscription: Subscription, ready: _Ready) -> Exception | None:
        if not subscription.is_async:
            return await receiving.in_thread(lambda: receiving.completed(self._call(subscription, ready)))
        try:
            with self._span(subscription, ready):
                if self.inbox is None:
                    await receiving.settled(subscription.call(ready.event))
                else:
                    await self.inbox.acall(subscription, ready.event, ready.envelope)
        except Exception as error:
            return error
        return None

    def _unhandled(self, delivery: Delivery, envelope: Envelope) -> Outcome:
        about = Handled(envelope)
        if self.unhandled == "ack":
            return Ack(label="unhandled", about=about)
        if self.unhandled == "release" and (after := self._wait_for_others(delivery, envelope)) is not None:
            return Defer(after, label="unhandled", about=about)
        why = f"no handler here takes {envelope.event_type}"
        tried = self.max_receives is not None and self.attempt(delivery) >= self.max_receives
        if tried or self.unhandled == "dead_letter":
            return Reject("unhandled", why, label="unhandled", about=about)
        return Retry(error=why, label="unhandled", about=about)

    def _wait_for_others(self, delivery: Delivery, envelope: Envelope) -> float | None:
        """Return the seconds after which another member of the group may take the event; None if none should.

        A receive by a member without a handler must not use up the attempts of those who have one. If they do not
        take the event for a long time, it is treated like one that nobody handles.
        """
        traits = self.inlet.queue().traits
        if traits.defers_by == "retry":
            return None
        # A copy of a message has not been received before.
        since = delivery.first_received_at if traits.defers_by == "undo" else envelope.created_at
        age = abs((self.clock.now() - since).total_seconds())
        is_known = self.codec.registry.find(envelope.event_type) is not None
        longest = _DEPLOY_SECONDS_IN_ORDER if traits.fifo else _DEPLOY_SECONDS
        if age > longest or not self.inlet.is_shared(envelope.event_type, is_known):
            return None
        # The pause doubles, because the age does.
        return max(_LEAST_PAUSE, self.config.retry_delays_seconds[0], min(age, _LONGEST_PAUSE))
