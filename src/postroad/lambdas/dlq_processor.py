"""The function behind the dead letters of tasks: each ends its run with one `Task Failed`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from postroad.blobs import Blobs
from postroad.errors import PostroadError
from postroad.lambdas.environment import attributes_of, opened_backend
from postroad.queues import ATTRIBUTE, Delivery, read_reference
from postroad.tasks import DeadLetterHandler, log_event
from postroad.wiring import Backend


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Handle the records of the dead-letter queue; what failed or names no task is answered, and stays there."""
    backend = opened_backend()
    letters = _letters(backend)
    failed = [record["messageId"] for record in event["Records"] if not _is_handled(letters, backend, record)]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _is_handled(letters: DeadLetterHandler, backend: Backend, record: Mapping[str, Any]) -> bool:
    try:
        return letters.handle(_whole(_delivery(record), backend.blobs())) != "stays"
    except PostroadError as error:
        log_event("task_handling_failed", message_id=record["messageId"], error=error)
        return False


def _delivery(record: Mapping[str, Any]) -> Delivery:
    """The record as a queue would have delivered it."""
    told = record.get("attributes", {})
    return Delivery(
        message_id=record["messageId"],
        body=str(record["body"]).encode(errors="replace"),
        attributes=attributes_of(record),
        group=None,
        receipt=record["receiptHandle"],
        receive_count=int(told.get("ApproximateReceiveCount", 1)),
        sent_at=_moment(told.get("SentTimestamp")),
        first_received_at=_moment(told.get("ApproximateFirstReceiveTimestamp")),
        sequence=None,
    )


def _whole(delivery: Delivery, blobs: Blobs | None) -> Delivery:
    """The delivery with its body where that travelled as a blob, as queues hand it out."""
    if ATTRIBUTE not in delivery.attributes or blobs is None:
        return delivery
    return msgspec.structs.replace(delivery, body=blobs.get(read_reference(delivery.body)))


def _moment(milliseconds: str | None) -> datetime:
    return datetime.fromtimestamp(int(milliseconds or 0) / 1000, UTC)


@functools.lru_cache(maxsize=8)
def _letters(backend: Backend) -> DeadLetterHandler:
    """The dead letters of a backend, opened once for as long as the function stays warm."""
    return DeadLetterHandler(backend)
