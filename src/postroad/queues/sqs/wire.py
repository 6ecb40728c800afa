"""Messages as SQS writes them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from postroad.queues.markers import DEAD_LETTER, kept_verbatim, mark_moved, unwrap
from postroad.queues.port import Delivery, OutgoingMessage, PeekedMessage

MAX_BATCH = 10
MAX_BATCH_BYTES = 1_048_576


def entry_of(message: OutgoingMessage, body: bytes, *, fifo: bool) -> dict[str, Any]:
    """The parameters that send the message; what is not set is left out, and only FIFO queues get a dedup id."""
    text = body.decode()
    entry: dict[str, Any] = {"MessageBody": text}
    if attributes := kept_verbatim(text, message.attributes):
        entry["MessageAttributes"] = message_attributes(attributes)
    if message.group is not None:
        entry["MessageGroupId"] = message.group
    if fifo and message.dedup_id is not None:
        entry["MessageDeduplicationId"] = message.dedup_id
    if message.delay:
        entry["DelaySeconds"] = whole(message.delay)
    return entry


def message_attributes(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Message attributes, all of them of type String."""
    return {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}


def size_of(body: bytes, attributes: Mapping[str, str]) -> int:
    """The bytes that count against SQS's limits."""
    if not attributes:
        return len(body)
    return len(body) + sum(len(name) + len("String") + len(value.encode()) for name, value in attributes.items())


def whole(seconds: float) -> int:
    """Seconds rounded up, as SQS knows whole ones only: never earlier than asked."""
    return math.ceil(seconds)


def delivery_of(raw: Mapping[str, Any], now: datetime) -> Delivery:
    """A received message, taken out of what SNS or EventBridge wrapped around it."""
    system = raw.get("Attributes") or {}
    count = int(system.get("ApproximateReceiveCount", 1))
    body, attributes = unwrap(raw["Body"], _texts(raw.get("MessageAttributes") or {}))
    source = system.get("DeadLetterQueueSourceArn")
    if source and DEAD_LETTER not in attributes:
        # The receive that brought it here counts too; SQS goes on counting where the source queue stopped.
        attributes = mark_moved(attributes, source=source.rpartition(":")[2], receives=max(1, count - 1))
    sequence = system.get("SequenceNumber")
    return Delivery(
        message_id=raw["MessageId"],
        body=body,
        attributes=attributes,
        group=system.get("MessageGroupId"),
        receipt=raw["ReceiptHandle"],
        receive_count=count,
        sent_at=_moment(system.get("SentTimestamp"), now),
        first_received_at=_moment(system.get("ApproximateFirstReceiveTimestamp"), now),
        sequence=None if sequence is None else int(sequence),
    )


def peeked_of(delivery: Delivery) -> PeekedMessage:
    """What a peek shows of a message."""
    return PeekedMessage(
        message_id=delivery.message_id,
        body=delivery.body,
        attributes=delivery.attributes,
        group=delivery.group,
        receive_count=delivery.receive_count,
        sent_at=delivery.sent_at,
        sequence=delivery.sequence,
        state="visible",
    )


def _texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(attribute) for name, attribute in attributes.items()}


def _text(attribute: Mapping[str, Any]) -> str:
    if "StringValue" in attribute:
        return str(attribute["StringValue"])
    return base64.b64encode(attribute.get("BinaryValue", b"")).decode()


def _moment(milliseconds: str | None, now: datetime) -> datetime:
    return now if not milliseconds else datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
