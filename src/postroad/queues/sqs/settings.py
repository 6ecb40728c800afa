"""A queue's settings as attributes of SQS, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from postroad.errors import NotSupported
from postroad.queues.spec import MAX_MESSAGE_BYTES, QueueSpec
from postroad.queues.sqs.wire import whole

DEFAULT_MAX_RECEIVES = 3


def rounded(spec: QueueSpec) -> QueueSpec:
    """The settings as SQS can keep them: whole seconds, rounded up; `max_receives` only beside a dead-letter queue."""
    if spec.auto_delete_after is not None:
        raise NotSupported(
            "auto_delete_after: SQS removes no queue by itself",
            field="auto_delete_after",
            remedy="Leave it out and delete the queue when it is no longer needed; the trait is auto_deletes.",
        )
    return replace(
        spec,
        visibility=whole(spec.visibility),
        retention=whole(spec.retention),
        delay=whole(spec.delay),
        receive_wait=whole(spec.receive_wait),
        max_receives=DEFAULT_MAX_RECEIVES if spec.dead_letter is None else spec.max_receives,
    )


def queue_attributes(spec: QueueSpec, dead_letter_arn: str | None) -> dict[str, str]:
    """The attributes that give a queue these settings, but for who may use it as dead letters."""
    attributes = {
        "VisibilityTimeout": str(whole(spec.visibility)),
        "MessageRetentionPeriod": str(whole(spec.retention)),
        "DelaySeconds": str(whole(spec.delay)),
        "ReceiveMessageWaitTimeSeconds": str(whole(spec.receive_wait)),
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


def redrive_allow_policy(spec: QueueSpec, arn: str) -> str:
    """The policy that says which queues may have this one for their dead letters."""
    if spec.redrive_allow in ("all", "none"):
        return json.dumps({"redrivePermission": "allowAll" if spec.redrive_allow == "all" else "denyAll"})
    prefix = arn.rpartition(":")[0]
    sources = [f"{prefix}:{name}" for name in spec.redrive_allow]
    return json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": sources})


def spec_of(name: str, attributes: Mapping[str, str]) -> QueueSpec:
    """The settings of an existing queue."""
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


def is_encrypted(attributes: Mapping[str, str]) -> bool:
    """Whether SQS or a KMS key encrypts what the queue holds."""
    return bool(attributes.get("KmsMasterKeyId")) or attributes.get("SqsManagedSseEnabled") == "true"


def assumed(name: str) -> QueueSpec:
    """The settings to go by where they may not be read: SQS itself then refuses what its own do not allow."""
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
