"""What becomes of one delivery: read, recognised, given to its handlers, and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from postroad.bus.config import SQSEventBusConfig, Unhandled
from postroad.bus.context import HandlingContext, handling
from postroad.bus.local import EventBus, InProcessEventBus
from postroad.bus.memory import Memory
from postroad.bus.result import EventHandler
from postroad.bus.telling import Teller
from postroad.errors import InvalidMessage
from postroad.events import Codec, Envelope
from postroad.queues import Delivery
from postroad.queues.burying import describe
from postroad.telemetry import tracing

Wanted = Callable[[Delivery, Envelope], bool]
Halted = Callable[[], bool]
Reason = Literal["undecodable", "unknown_type", "invalid", "handler_failed", "unhandled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Forget the message. `event` is there when it was handled."""

    outcome: str
    envelope: Envelope
    event: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Let the message come again after so many seconds."""

    outcome: str
    envelope: Envelope | None = None
    after: float
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bury:
    """Put the message with the dead letters; where there are none, let it come again after `after` seconds."""

    outcome: str
    envelope: Envelope | None = None
    reason: Reason
    after: float
    error: str | None = None


Verdict = Ack | Release | Bury


@dataclass(slots=True, kw_only=True)
class Judge:
    """Judges the deliveries of one bus."""

    codec: Codec
    config: SQSEventBusConfig
    local: EventBus
    memory: Memory
    wanted: Wanted
    unhandled: Unhandled
    buries: bool
    """Whether the bus has dead letters to put failures into."""
    teller: Teller

    def judge(self, delivery: Delivery, halted: Halted) -> Verdict:
        """Run the handlers that have to run, and say what follows."""
        attempt = self.memory.attempt(delivery.message_id, delivery.receive_count)
        after = self.config.retry_delay(attempt)
        try:
            envelope = self.codec.decode(delivery.body)
            self.teller.tell("bus_received", envelope, receive_count=delivery.receive_count)
        except InvalidMessage as error:
            self.teller.tell("bus_received", message_id=delivery.message_id, receive_count=delivery.receive_count)
            # An error that names no field is about bytes that are no message at all.
            reason: Reason = "undecodable" if error.field is None else "invalid"
            return Bury(outcome="dead_lettered", reason=reason, after=after, error=describe(error))
        event_type = self.codec.registry.find(envelope.event_type)
        if event_type is None:
            why = f"UnknownEventType: {envelope.event_type[:200]!r} is not registered"
            return Bury(outcome="dead_lettered", envelope=envelope, reason="unknown_type", after=after, error=why)
        if not self.config.allows(event_type) or not self.wanted(delivery, envelope):
            return self._unhandled(envelope, attempt)
        if (known := self._known(envelope, after)) is not None:
            return known
        try:
            event = self.codec.unwrap(envelope)
        except Exception as error:
            why = describe(error)
            return Bury(outcome="dead_lettered", envelope=envelope, reason="invalid", after=after, error=why)
        return self._handle(delivery, envelope, event, attempt, halted)

    def failed(self, delivery: Delivery, error: BaseException) -> Verdict:
        """What follows when judging itself was ended, as by a handler that calls `sys.exit()`."""
        return self._failed(None, self.memory.attempt(delivery.message_id, delivery.receive_count), error)

    def _known(self, envelope: Envelope, after: float) -> Verdict | None:
        """The verdict on an event that this bus has handled before, on publish or on receipt."""
        if self.config.echo != "dispatch" and self.memory.published.seen(envelope.event_id):
            if self.config.echo == "settle":
                return Ack(outcome="echo", envelope=envelope)
            return Release(outcome="echo", envelope=envelope, after=after)
        if self.config.enable_deduplication and self.memory.handled.seen(envelope.event_id):
            return Ack(outcome="duplicate", envelope=envelope)
        return None

    def _handle(self, delivery: Delivery, envelope: Envelope, event: object, attempt: int, halted: Halted) -> Verdict:
        if isinstance(self.local, InProcessEventBus) and not self.local.handlers(type(event)):
            return self._unhandled(envelope, attempt)
        after = self.config.retry_delay(attempt)
        if self.config.enable_deduplication and not self.memory.handled.begin(envelope.event_id):
            if self.memory.handled.seen(envelope.event_id):
                return Ack(outcome="duplicate", envelope=envelope)
            # Acking this copy could lose the event if the other one fails.
            return Release(outcome="duplicate", envelope=envelope, after=after, error="another copy is being handled")
        try:
            context = HandlingContext(envelope=envelope, receive_count=delivery.receive_count, remote=True, event=event)
            with handling(context):
                verdict = self._dispatch(envelope, event, attempt, halted)
        except BaseException:
            self.memory.handled.forget(envelope.event_id)
            raise
        if verdict.outcome == "handled":
            self.memory.forget_succeeded(envelope.event_id)
            self.memory.handled.mark_seen(envelope.event_id)
        else:
            self.memory.handled.forget(envelope.event_id)
        return verdict

    def _dispatch(self, envelope: Envelope, event: object, attempt: int, halted: Halted) -> Verdict:
        if not isinstance(self.local, InProcessEventBus):
            result = self.local.publish(event)
            if not result.handlers_invoked and result.ok:
                return self._unhandled(envelope, attempt)
            errors = [failure.error for failure in result.errors]
            return self._verdict(envelope, event, attempt, errors)
        succeeded: list[EventHandler] = []
        errors = []
        for handler in self.memory.remaining(envelope.event_id, self.local.handlers(type(event))):
            if halted():
                self.memory.note_succeeded(envelope.event_id, succeeded)
                return Release(outcome="interrupted", envelope=envelope, after=0.0)
            error = self._call(self.local, handler, event, envelope)
            if error is None:
                succeeded.append(handler)
            else:
                errors.append(error)
        if errors:
            self.memory.note_succeeded(envelope.event_id, succeeded)
        return self._verdict(envelope, event, attempt, errors)

    def _call(
        self, local: InProcessEventBus, handler: EventHandler, event: object, envelope: Envelope
    ) -> Exception | None:
        try:
            with tracing.handling_by(handler, envelope.traceparent):
                if (found := handler(event)) is not None:
                    local.finish(found)
        except Exception as error:
            return error
        return None

    def _verdict(self, envelope: Envelope, event: object, attempt: int, errors: list[Exception]) -> Verdict:
        if not errors:
            return Ack(outcome="handled", envelope=envelope, event=event)
        return self._failed(envelope, attempt, errors[0])

    def _failed(self, envelope: Envelope | None, attempt: int, error: BaseException) -> Verdict:
        text, after = describe(error), self.config.retry_delay(attempt)
        if self.buries and attempt >= self.config.max_receives:
            return Bury(outcome="failed", envelope=envelope, reason="handler_failed", after=after, error=text)
        return Release(outcome="failed", envelope=envelope, after=after, error=text)

    def _unhandled(self, envelope: Envelope, attempt: int) -> Verdict:
        if self.unhandled == "ack":
            return Ack(outcome="unhandled", envelope=envelope)
        after = self.config.retry_delay(attempt)
        why = f"nobody here handles {envelope.event_type}"
        if self.unhandled == "dead_letter" or (self.buries and attempt >= self.config.max_receives):
            return Bury(outcome="unhandled", envelope=envelope, reason="unhandled", after=after, error=why)
        return Release(outcome="unhandled", envelope=envelope, after=after, error=why)
