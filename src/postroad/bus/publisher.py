"""Publishing: an event becomes a message; local handlers run first, then the transport sends it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from postroad.bus.config import SQSEventBusConfig
from postroad.bus.deduplication import Memory
from postroad.bus.local import EventBus, HandlerFailure, InProcessEventBus, PublishResult, register
from postroad.bus.sender import Sender, Sent
from postroad.bus.telemetry import BusTelemetry
from postroad.errors import PostroadError
from postroad.events import Codec, Envelope
from postroad.queues import OutgoingMessage, check_content
from postroad.receiving import HandlingContext, current_context, handling, in_thread
from postroad.telemetry import tracing

_LEGAL = re.compile(r"[!-~]{1,128}")


def group_of(template: str | None, envelope: Envelope, event: object, *, fifo: bool) -> str | None:
    """The group id to send: from the template, on FIFO else by key; None where a standard queue needs none."""
    if template is None and not fifo:
        return None
    values = _values(envelope, event)
    instead = values["request_id"] or envelope.publisher_id
    filled = {name: value or instead for name, value in values.items()}
    return legal(Template("${key}" if template is None else template).substitute(filled))


def _values(envelope: Envelope, event: object) -> Mapping[str, str | None]:
    request_id = getattr(event, "request_id", None)
    return {
        "session_id": envelope.session_id,
        "key": envelope.key,
        "tenant_id": envelope.tenant_id,
        "event_type": envelope.event_type,
        "publisher_id": envelope.publisher_id,
        "request_id": None if request_id is None else str(request_id),
    }


def legal(group: str) -> str:
    """The group id, or its hash where SQS would refuse it."""
    if _LEGAL.fullmatch(group):
        return group
    return hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()


REPLY_TO = "ReplyTo"
# What SQS allows in text.
_ALLOWED = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


def attributes_of(envelope: Envelope, *, reply_to: str | None = None) -> dict[str, str]:
    """The attributes that say something; what an attribute cannot carry stays in the body alone."""
    told = {
        "EventType": envelope.event_type,
        "PublisherId": envelope.publisher_id,
        "CreatedAt": envelope.created_at.isoformat(),
        "SessionId": envelope.session_id,
        REPLY_TO: reply_to,
        "TraceParent": envelope.traceparent,
    }
    return {name: value for name, value in told.items() if value and _ALLOWED.fullmatch(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Wraps the events of one bus."""

    codec: Codec
    config: SQSEventBusConfig
    publisher_id: str
    fifo: bool
    needs_dedup_id: bool
    """Whether the transport refuses a FIFO message without one."""
    limit: int | None
    """The bytes above which a message is refused before any request; None where it travels by reference."""

    def wrap(self, event: object, key: str | None) -> Envelope:
        """The envelope; inside a handler it carries what caused it."""
        register(self.codec.registry, type(event))
        tenant = getattr(event, "tenant_id", None)
        cause = current_context()
        return self.codec.wrap(
            event,
            publisher_id=self.publisher_id,
            key=key,
            tenant_id=tenant if isinstance(tenant, str) else None,
            traceparent=tracing.traceparent() or (cause.envelope.traceparent if cause else None),
            correlation_id=None if cause is None else _correlation(cause),
            causation_id=None if cause is None else str(cause.envelope.event_id),
        )

    def message(self, envelope: Envelope, event: object) -> OutgoingMessage:
        """What is sent, the same in every retry."""
        cause = current_context()
        reply_to = None if cause is None else cause.envelope.publisher_id
        dedup = self.fifo and (self.config.enable_deduplication or self.needs_dedup_id)
        message = OutgoingMessage(
            self.codec.encode(envelope),
            attributes_of(envelope, reply_to=reply_to),
            group=group_of(self.config.message_group_id, envelope, event, fifo=self.fifo),
            dedup_id=str(envelope.event_id) if dedup else None,
        )
        if self.limit is not None and _size(message) > self.limit:
            check_content(message, limit=self.limit)
        return message


def _size(message: OutgoingMessage) -> int:
    """About how many bytes it takes, and never fewer; the transport checks its content once more."""
    return len(message.body) + sum(len(name) + 4 * len(value) + 6 for name, value in message.attributes.items())


def _correlation(cause: HandlingContext) -> str:
    return cause.envelope.correlation_id or str(cause.envelope.event_id)


_CHUNK = 10
_NO_RECEIVERS = "Nobody subscribes to this topic; create a group first: postroad bus group create TOPIC GROUP"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An event ready to go: its message, or what became of it already."""

    event: object
    envelope: Envelope | None
    message: OutgoingMessage | None
    sent: Sent | None = None


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Publishes for one bus."""

    name: str
    config: SQSEventBusConfig
    local: EventBus
    memory: Memory
    teller: BusTelemetry
    packer: Packer
    sender: Sender

    def publish(self, event: object, key: str | None = None) -> PublishResult:
        """Run the local handlers, then send; both outcomes are in the result."""
        with tracing.publishing(self.name):
            prepared = self._prepare(event, key)
            local = self._dispatch(prepared)
            return self._result(prepared, local, self._send([prepared], set())[0])

    def publish_many(self, events: Iterable[object]) -> list[PublishResult]:
        """Publish in order, ten to a request; one result for each, and no failure stops the rest."""
        results: list[PublishResult] = []
        blocked: set[str | None] = set()
        rest = iter(events)
        while chunk := [event for _, event in zip(range(_CHUNK), rest, strict=False)]:
            with tracing.publishing(self.name):
                prepared = [self._prepare(event, None) for event in chunk]
                local = [self._dispatch(each) for each in prepared]
                sent = self._send(prepared, blocked)
            results += map(self._result, prepared, local, sent)
        return results

    async def apublish(self, event: object, key: str | None = None) -> PublishResult:
        """Publish without blocking the loop: async handlers are awaited on it, all else runs in threads."""
        with tracing.publishing(self.name):
            prepared = self._prepare(event, key)
            local = await self._adispatch(prepared)
            sent = await in_thread(self._send, [prepared], set[str | None]())
            return self._result(prepared, local, sent[0])

    def _prepare(self, event: object, key: str | None) -> _Prepared:
        """Wrap the event once, before a handler can change it: all retries send the same bytes."""
        envelope = None
        filtered = None if self.config.allows(type(event)) else Sent("filtered")
        try:
            envelope = self.packer.wrap(event, key)
            message = None if filtered else self.packer.message(envelope, event)
        except PostroadError as error:
            return _Prepared(event, envelope, None, filtered or Sent("failed", error))
        return _Prepared(event, envelope, message, filtered)

    def _dispatch(self, prepared: _Prepared) -> PublishResult | None:
        if not self.config.local_dispatch:
            return None
        with handling(_context(prepared)):
            result = self.local.publish(prepared.event)
        self._remember(prepared, result)
        return result

    async def _adispatch(self, prepared: _Prepared) -> PublishResult | None:
        if not self.config.local_dispatch:
            return None
        with handling(_context(prepared)):
            if isinstance(self.local, InProcessEventBus):
                result = await self.local.apublish(prepared.event)
            else:
                result = await in_thread(self.local.publish, prepared.event)
        self._remember(prepared, result)
        return result

    def _remember(self, prepared: _Prepared, result: PublishResult) -> None:
        """What was handled here must not be handled again when it comes back."""
        if prepared.envelope is None or not result.handlers_invoked:
            return
        if result.ok:
            self.memory.published.mark_seen(prepared.envelope.event_id)
            return
        succeeded = list(result.handlers_invoked)
        for failure in result.errors:
            if failure.handler in succeeded:
                succeeded.remove(failure.handler)
        self.memory.note_succeeded(prepared.envelope.event_id, succeeded)

    def _send(self, prepared: Sequence[_Prepared], blocked: set[str | None]) -> list[Sent]:
        messages = [each.message for each in prepared if each.message is not None]
        outcomes = iter(self.sender.send(messages, blocked) if messages else ())
        sent = [each.sent or next(outcomes) for each in prepared]
        for each, outcome in zip(prepared, sent, strict=True):
            if outcome.error is not None:
                self.teller.tell("bus_publish_failed", each.envelope, error=str(outcome.error))
            elif outcome.remote == "sent":
                self.teller.tell("bus_published", each.envelope)
                if outcome.receivers == 0:
                    self.teller.tell_at_times("bus_no_receivers", remedy=_NO_RECEIVERS)
        return sent

    def _result(self, prepared: _Prepared, local: PublishResult | None, sent: Sent) -> PublishResult:
        errors = () if local is None else local.errors
        if sent.error is not None:
            errors = (*errors, HandlerFailure(self.send_alone, sent.error))
        invoked = () if local is None else local.handlers_invoked
        event_id = None if prepared.envelope is None else prepared.envelope.event_id
        return PublishResult(
            prepared.event, invoked, errors, event_id=event_id, remote=sent.remote, receivers=sent.receivers
        )

    def send_alone(self, event: object) -> None:
        """Send the event to other processes alone; in a result it stands for the transport."""
        (sent,) = self._send([self._prepare(event, None)], set())
        if sent.error is not None:
            raise sent.error


def _context(prepared: _Prepared) -> HandlingContext | None:
    return None if prepared.envelope is None else HandlingContext(envelope=prepared.envelope, event=prepared.event)
