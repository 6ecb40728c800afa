"""Events as messages: the body, the attributes, and the limit of their size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from postroad.bus.config import SQSEventBusConfig, group_of
from postroad.bus.local import register
from postroad.events import Codec, Envelope
from postroad.queues import OutgoingMessage, check_content
from postroad.receiving import HandlingContext, current_context
from postroad.telemetry import tracing

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
