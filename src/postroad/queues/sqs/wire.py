"""Messages and settings of queues as SQS writes them, and what SNS and EventBridge wrap around a message."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Literal

import msgspec

from postroad.connections import Again
from postroad.errors import InvalidMessage, NotSupported, OutcomeUnknown, PostroadError
from postroad.queues.markers import DEAD_LETTER, mark_dead
from postroad.queues.port import Delivery, OutgoingMessage, PeekedMessage, SendResult
from postroad.queues.rules import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, QueueSpec

MAX_BATCH = 10
MAX_BATCH_BYTES = 1_048_576
DEFAULT_MAX_RECEIVES = 3
EVENT_SOURCE = "postroad"
VERBATIM = "postroad.verbatim"
"""The attribute of a body that looks wrapped and is not."""
Outcome = Mapping[str, Any] | Again | PostroadError


def entry_of(message: OutgoingMessage, body: bytes, *, fifo: bool) -> dict[str, Any]:
    """Return the parameters that send the message, without those that are not set; only FIFO queues get a dedup id."""
    text = body.decode()
    entry: dict[str, Any] = {"MessageBody": text}
    if attributes := kept_verbatim(text, message.attributes):
        entry["MessageAttributes"] = message_attributes(attributes)
    if message.group is not None:
        entry["MessageGroupId"] = message.group
    if fifo and message.dedup_id is not None:
        entry["MessageDeduplicationId"] = message.dedup_id
    if message.delay:
        entry["DelaySeconds"] = ceil(message.delay)
    return entry


def sent_result(outcome: Mapping[str, Any] | PostroadError) -> SendResult:
    """Return the outcome of one entry that was sent to SQS or published to SNS."""
    if isinstance(outcome, PostroadError):
        return SendResult(ok=False, error=outcome)
    sequence = outcome.get("SequenceNumber")
    return SendResult(ok=True, message_id=outcome.get("MessageId"), sequence=int(sequence) if sequence else None)


def outcomes_of(
    answer: Mapping[str, Any], count: int, failed: Callable[[Mapping[str, Any]], Outcome], *, call: str
) -> list[Outcome]:
    """Return the outcome of each entry of a batch call to SQS or SNS; `failed` translates an entry that failed."""
    outcomes: dict[str, Outcome] = {entry["Id"]: entry for entry in answer.get("Successful") or ()}
    outcomes.update({entry["Id"]: failed(entry) for entry in answer.get("Failed") or ()})
    unknown = f"{call}: the answer says nothing about this entry"
    return [outcomes.get(str(number)) or OutcomeUnknown(unknown) for number in range(count)]


def is_intact(body: str, md5: str | None) -> bool:
    """Return whether the body has the checksum that SQS reports; a client may report none."""
    return not md5 or hashlib.md5(body.encode(), usedforsecurity=False).hexdigest() == md5


def message_attributes(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the message attributes, all of them of type String."""
    return {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}


def size_of(body: bytes, attributes: Mapping[str, str]) -> int:
    """Return the bytes that count against the limits of SQS."""
    if not attributes:
        return len(body)
    texts = "".join((*attributes, *attributes.values()))
    return len(body) + len(texts.encode()) + len(attributes) * len("String")


def delivery_of(raw: Mapping[str, Any], now: datetime) -> Delivery:
    """Return a received message without what SNS or EventBridge wrapped around it."""
    system = raw.get("Attributes") or {}
    count = int(system.get("ApproximateReceiveCount", 1))
    texts = {name: _text(attribute) for name, attribute in (raw.get("MessageAttributes") or {}).items()}
    body, attributes = unwrap(raw["Body"], texts)
    source = system.get("DeadLetterQueueSourceArn")
    if source and DEAD_LETTER not in attributes:
        # The receive that brought it here counts too; SQS goes on counting where the source queue stopped.
        source, receives = source.rpartition(":")[2], max(1, count - 1)
        attributes = mark_dead(attributes, source=source, receives=receives, error=None, at=None)
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
    shown = {name: getattr(delivery, name) for name in PeekedMessage.__struct_fields__ if name != "state"}
    return PeekedMessage(**shown, state="visible")


def _text(attribute: Mapping[str, Any]) -> str:
    if "StringValue" in attribute:
        return str(attribute["StringValue"])
    return base64.b64encode(attribute.get("BinaryValue", b"")).decode()


def _moment(milliseconds: str | None, now: datetime) -> datetime:
    return now if not milliseconds else datetime.fromtimestamp(int(milliseconds) / 1000, UTC)


def wrap_detail(body: bytes, attributes: Mapping[str, str]) -> str:
    """Return the `Detail` of an EventBridge entry, from which `unwrap` restores body and attributes."""
    return msgspec.json.encode({"attributes": dict(attributes), "body": body.decode()}).decode()


def kept_verbatim(body: str, attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the attributes to send with a body so that `unwrap` leaves that body as it is."""
    if _unwrapped(body) is None:
        return attributes
    if len(attributes) >= MAX_ATTRIBUTES:
        raise InvalidMessage(
            f"attributes: {len(attributes)} attributes; a body that looks like a notification of SNS or EventBridge "
            f"needs one of the {MAX_ATTRIBUTES} for itself",
            field="attributes",
        )
    return {**attributes, VERBATIM: "true"}


def unwrap(body: str, attributes: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return body and attributes as they were published; a body that is not wrapped stays as it is."""
    if VERBATIM in attributes:
        return body.encode(), {name: value for name, value in attributes.items() if name != VERBATIM}
    found = _unwrapped(body)
    return (body.encode(), attributes) if found is None else (found[0].encode(), {**found[1], **attributes})


def _unwrapped(body: str) -> tuple[str, dict[str, str]] | None:
    if body[:1] != "{" or ('"Notification"' not in body and '"detail-type"' not in body):
        return None
    try:
        outer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(outer, dict):
        return None
    return _from_sns(outer) or _from_eventbridge(outer)


def _from_sns(outer: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    message = outer.get("Message")
    if outer.get("Type") != "Notification" or "TopicArn" not in outer or not isinstance(message, str) or not message:
        return None
    attributes = outer.get("MessageAttributes") or {}
    values = {name: entry.get("Value") for name, entry in attributes.items() if isinstance(entry, dict)}
    return message, {name: value for name, value in values.items() if isinstance(value, str)}


def _from_eventbridge(outer: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    detail = outer.get("detail")
    if "detail-type" not in outer or "source" not in outer or not isinstance(detail, dict):
        return None
    body, attributes = detail.get("body"), detail.get("attributes")
    if detail.keys() == {"body", "attributes"} and isinstance(body, str) and body and isinstance(attributes, dict):
        return body, {name: value for name, value in attributes.items() if isinstance(value, str)}
    if "event_type" in detail and "payload" in detail:
        # An envelope that was put onto the bus unwrapped.
        return msgspec.json.encode(detail).decode(), {}
    return None


def rounded(spec: QueueSpec) -> QueueSpec:
    """Return the settings as SQS stores them: seconds rounded up, `max_receives` only with a dead-letter queue."""
    if spec.auto_delete_after is not None:
        raise NotSupported(
            "auto_delete_after: SQS deletes no queue by itself",
            field="auto_delete_after",
            remedy="Leave it out and delete the queue when it is no longer needed; the trait is auto_deletes.",
        )
    return replace(
        spec,
        visibility=ceil(spec.visibility),
        retention=ceil(spec.retention),
        delay=ceil(spec.delay),
        receive_wait=ceil(spec.receive_wait),
        max_receives=DEFAULT_MAX_RECEIVES if spec.dead_letter is None else spec.max_receives,
    )


def queue_attributes(spec: QueueSpec, dead_letter_arn: str | None) -> dict[str, str]:
    """Return the attributes for these settings, except for which queues may have this one as dead letters."""
    attributes = {
        "VisibilityTimeout": str(ceil(spec.visibility)),
        "MessageRetentionPeriod": str(ceil(spec.retention)),
        "DelaySeconds": str(ceil(spec.delay)),
        "ReceiveMessageWaitTimeSeconds": str(ceil(spec.receive_wait)),
        "MaximumMessageSize": str(spec.max_message_bytes),
    }
    if dead_letter_arn is not None:
        policy = {"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": spec.max_receives}
        attributes["RedrivePolicy"] = json.dumps(policy)
    if spec.fifo:
        by_group = spec.dedup_scope == "group"
        attributes["ContentBasedDeduplication"] = "true" if spec.content_dedup else "false"
        attributes["DeduplicationScope"] = "messageGroup" if by_group else "queue"
        attributes["FifoThroughputLimit"] = "perMessageGroupId" if by_group else "perQueue"
    return attributes


def redrive_allow_policy(allowed: str | Sequence[str], arn: str) -> dict[str, Any]:
    """Return the policy that says which queues may have the one at this ARN as their dead-letter queue."""
    if isinstance(allowed, str):
        return {"redrivePermission": "allowAll" if allowed == "all" else "denyAll"}
    prefix = arn.rpartition(":")[0]
    return {"redrivePermission": "byQueue", "sourceQueueArns": [f"{prefix}:{name}" for name in allowed]}


def spec_of(name: str, attributes: Mapping[str, str]) -> QueueSpec:
    redrive = _decoded(attributes.get("RedrivePolicy"))
    target = redrive.get("deadLetterTargetArn")
    return QueueSpec(
        name,
        fifo=name.endswith(".fifo"),
        visibility=int(attributes.get("VisibilityTimeout", 30)),
        retention=int(attributes.get("MessageRetentionPeriod", 345_600)),
        delay=int(attributes.get("DelaySeconds", 0)),
        receive_wait=int(attributes.get("ReceiveMessageWaitTimeSeconds", 0)),
        max_message_bytes=int(attributes.get("MaximumMessageSize", MAX_MESSAGE_BYTES)),
        dead_letter=str(target).rpartition(":")[2] if target else None,
        max_receives=int(redrive["maxReceiveCount"]) if target else DEFAULT_MAX_RECEIVES,
        content_dedup=attributes.get("ContentBasedDeduplication") == "true",
        dedup_scope="group" if attributes.get("DeduplicationScope") == "messageGroup" else "queue",
        redrive_allow=_redrive_allow(attributes.get("RedriveAllowPolicy")),
    )


def assumed(name: str) -> QueueSpec:
    """Return the settings to assume if they may not be read; SQS itself then refuses what it does not allow."""
    fifo = name.endswith(".fifo")
    return QueueSpec(name, fifo=fifo, content_dedup=fifo)


def _redrive_allow(policy: str | None) -> Literal["all", "none"] | tuple[str, ...]:
    decoded = _decoded(policy)
    if decoded.get("redrivePermission") == "denyAll":
        return "none"
    if decoded.get("redrivePermission") == "byQueue":
        return tuple(str(arn).rpartition(":")[2] for arn in decoded.get("sourceQueueArns", ()))
    return "all"


def _decoded(policy: str | None) -> dict[str, Any]:
    decoded = json.loads(policy) if policy else {}
    return decoded if isinstance(decoded, dict) else {}
