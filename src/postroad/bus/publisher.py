"""Publishing: an event becomes a message; local handlers run first, then the transport sends it."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from string import Template
from typing import Any

from postroad.bus.config import BusConfig
from postroad.bus.deduplication import Done, Memory
from postroad.bus.endpoints import Outlet
from postroad.bus.local import E, EventBus, HandlerFailure, InProcessEventBus, PublishResult, register
from postroad.bus.sender import Sender, Sent
from postroad.bus.telemetry import BusTelemetry
from postroad.errors import PostroadError, describe
from postroad.events import Codec, Envelope
from postroad.queues import OutgoingMessage, check_content, legible
from postroad.receiving import HandlingContext, current_context, handling, in_thread
from postroad.telemetry import tracing

_CHUNK = 10
_NO_RECEIVERS = (
    "No group takes this event. Create one with `postroad bus group create {0} GROUP`, or look at the types of those "
    "that exist with `postroad bus group list {0}`."
)
# What SQS allows in a group id, and in text.
_GROUP_ID = re.compile(r"[!-~]{1,128}")
_TEXT = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


def group_of(template: str | None, envelope: Envelope, event: object, *, fifo: bool) -> str | None:
    """Return the group id of the message: from the template, on FIFO else the key; None if a standard queue needs none.

    A field that the event does not have is replaced by its request id or its publisher. A group id that SQS would
    refuse is replaced by its hash.
    """
    if template is None and not fifo:
        return None
    request_id = getattr(event, "request_id", None)
    values = {
        "session_id": envelope.session_id,
        "key": envelope.key,
        "tenant_id": envelope.tenant_id,
        "event_type": envelope.event_type,
        "publisher_id": envelope.publisher_id,
        "request_id": None if request_id is None else str(request_id),
    }
    instead = values["request_id"] or envelope.publisher_id
    filled = {name: value or instead for name, value in values.items()}
    group = Template("${key}" if template is None else template).substitute(filled)
    return group if _GROUP_ID.fullmatch(group) else hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()


def attributes_of(envelope: Envelope, *, reply_to: str | None = None) -> dict[str, str]:
    """Return the attributes of the message; a value that an attribute cannot carry is only in the body."""
    attributes = {
        "EventType": envelope.event_type,
        "PublisherId": envelope.publisher_id,
        "CreatedAt": envelope.created_at.isoformat(),
        "SessionId": envelope.session_id,
        "ReplyTo": reply_to,
        "TraceParent": envelope.traceparent,
    }
    return {name: value for name, value in attributes.items() if value and _TEXT.fullmatch(value)}


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An event that is ready to be sent: its message, or the outcome if it is not sent."""

    event: object
    envelope: Envelope | None
    message: OutgoingMessage | None
    sent: Sent | None = None


@dataclass(repr=False, slots=True, kw_only=True)
class Publisher:
    """Publishes for one bus."""

    outlet: Outlet
    codec: Codec
    publisher_id: str
    config: BusConfig
    local: EventBus
    memory: Memory
    telemetry: BusTelemetry
    sender: Sender
    allows: Callable[[type], bool] | None
    """Returns whether events of a type are sent; None if all are."""

    def __repr__(self) -> str:
        # Results name the handler that failed, and this is the one that sends.
        return f"<publisher of {self.outlet.name!r}>"

    def publish(self, event: E, key: str | None = None) -> PublishResult[E]:
        with tracing.publishing(self.outlet.name):
            prepared = self._prepare(event, key, alone=True)
            local = self._dispatch(prepared)
            return self._result(prepared, local, self._send([prepared], set())[0])

    def publish_many(self, events: Iterable[E]) -> list[PublishResult[E]]:
        results: list[PublishResult[E]] = []
        blocked: set[str | None] = set()
        rest = iter(events)
        while chunk := list(islice(rest, _CHUNK)):
            with tracing.publishing(self.outlet.name):
                prepared = [self._prepare(event, None) for event in chunk]
                local = [self._dispatch(each) for each in prepared]
                sent = self._send(prepared, blocked)
            results += map(self._result, prepared, local, sent)
        return results

    async def apublish(self, event: E, key: str | None = None) -> PublishResult[E]:
        with tracing.publishing(self.outlet.name):
            prepared = self._prepare(event, key, alone=True)
            local: PublishResult[Any] | None = None
            if self.config.local_dispatch:
                with handling(_context(prepared)):
                    if isinstance(self.local, InProcessEventBus):
                        local = await self.local.apublish(event)
                    else:
                        local = await in_thread(self.local.publish, event)
                self._remember(prepared, local)
            sent = await in_thread(self._send, [prepared], set[str | None]())
            return self._result(prepared, local, sent[0])

    def send_alone(self, event: object) -> None:
        """Send the event to other processes only; in a result this function stands for the transport."""
        (sent,) = self._send([self._prepare(event, None)], set())
        if sent.error is not None:
            raise sent.error

    def _prepare(self, event: object, key: str | None, *, alone: bool = False) -> _Prepared:
        """Wrap the event once, before a handler can change it: all retries send the same bytes."""
        envelope = None
        filtered = None if self.allows is None or self.allows(type(event)) else Sent("filtered")
        try:
            envelope = self._wrap(event, key)
            if alone:
                tracing.name_message(str(envelope.event_id))
            message = None if filtered else self._message(envelope, event)
        except PostroadError as error:
            return _Prepared(event, envelope, None, filtered or Sent("failed", error))
        return _Prepared(event, envelope, message, filtered)

    def _wrap(self, event: object, key: str | None) -> Envelope:
        """Return the envelope; inside a handler it names the event that caused it."""
        register(self.codec.registry, type(event))
        tenant = getattr(event, "tenant_id", None)
        context = current_context()
        cause = None if context is None else context.envelope
        return self.codec.wrap(
            event,
            publisher_id=self.publisher_id,
            key=key,
            tenant_id=tenant if isinstance(tenant, str) else None,
            traceparent=tracing.traceparent() or (None if cause is None else cause.traceparent),
            correlation_id=None if cause is None else cause.correlation_id or str(cause.event_id),
            causation_id=None if cause is None else str(cause.event_id),
        )

    def _message(self, envelope: Envelope, event: object) -> OutgoingMessage:
        cause, fifo, limit = current_context(), self.outlet.fifo, self.outlet.limit
        dedup = fifo and (self.config.enable_deduplication or self.outlet.needs_dedup_id)
        message = OutgoingMessage(
            self.codec.encode(envelope),
            attributes_of(envelope, reply_to=None if cause is None else cause.envelope.publisher_id),
            group=group_of(self.config.message_group_id, envelope, event, fifo=fifo),
            dedup_id=str(envelope.event_id) if dedup else None,
        )
        # An upper bound of the size, so that few messages are checked exactly.
        texts = "".join((*message.attributes, *message.attributes.values()))
        size = len(message.body) + 4 * len(texts) + 6 * len(message.attributes)
        if limit is not None and size > limit:
            check_content(message, limit=limit)
        return message

    def _dispatch(self, prepared: _Prepared) -> PublishResult[Any] | None:
        if not self.config.local_dispatch:
            return None
        with handling(_context(prepared)):
            result = self.local.publish(prepared.event)
        self._remember(prepared, result)
        return result

    def _remember(self, prepared: _Prepared, result: PublishResult[Any]) -> None:
        """Remember which handlers ran here, so that they do not run again when the event comes back."""
        if result.errors:
            self.telemetry.handler_error = legible(describe(result.errors[-1].error))
        if prepared.envelope is None or not result.handlers_invoked:
            return
        if result.ok:
            self.memory.published.mark_seen(prepared.envelope.event_id)
            return
        succeeded = list(result.handlers_invoked)
        for failure in result.errors:
            if failure.handler in succeeded:
                succeeded.remove(failure.handler)
        self.memory.note_done(prepared.envelope.event_id, [Done(handler) for handler in succeeded])

    def _send(self, prepared: Sequence[_Prepared], blocked: set[str | None]) -> list[Sent]:
        messages = [each.message for each in prepared if each.message is not None]
        began = time.perf_counter()
        outcomes = iter(self.sender.send(messages, blocked) if messages else ())
        about: dict[str, Any] = {
            "queue": self.outlet.name,
            "duration_ms": round((time.perf_counter() - began) * 1_000, 3),
        }
        sent = [each.sent or next(outcomes) for each in prepared]
        for each, outcome in zip(prepared, sent, strict=True):
            if outcome.error is not None:
                remedy = getattr(outcome.error, "remedy", None)
                error = str(outcome.error)
                self.telemetry.log("bus_publish_failed", each.envelope, error=error, remedy=remedy, **about)
            elif outcome.remote == "sent":
                self.telemetry.log("bus_published", each.envelope, **about)
                if outcome.receivers == 0 and self.telemetry.is_due("bus_no_receivers"):
                    self.telemetry.log("bus_no_receivers", each.envelope, remedy=_NO_RECEIVERS.format(self.outlet.name))
        return sent

    def _result(self, prepared: _Prepared, local: PublishResult[Any] | None, sent: Sent) -> PublishResult[Any]:
        invoked, errors = ((), ()) if local is None else (local.handlers_invoked, local.errors)
        if sent.error is not None:
            errors = (*errors, HandlerFailure(self.send_alone, sent.error))
        event_id = None if prepared.envelope is None else prepared.envelope.event_id
        return PublishResult(
            prepared.event, invoked, errors, event_id=event_id, remote=sent.remote, receivers=sent.receivers
        )


def _context(prepared: _Prepared) -> HandlingContext | None:
    return None if prepared.envelope is None else HandlingContext(envelope=prepared.envelope, event=prepared.event)
