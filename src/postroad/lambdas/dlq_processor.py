"""The function behind the dead letters of tasks: each of them ends its run with one `Task Failed`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from postroad.errors import PostroadError
from postroad.lambdas import attributes_of, failures, opened_backend
from postroad.queues import ATTRIBUTE, Delivery, read_reference
from postroad.tasks import DeadLetterHandler, log_event
from postroad.wiring import Backend


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Handle the records of the dead-letter queue; return those that failed or name no task, which stay there."""
    backend = opened_backend()
    letters = _letters(backend)
    return failures(event["Records"], lambda record: _is_handled(letters, backend, record))


def _is_handled(letters: DeadLetterHandler, backend: Backend, record: Mapping[str, Any]) -> bool:
    try:
        delivery, blobs = _delivery(record), backend.blobs()
        if ATTRIBUTE in delivery.attributes and blobs is not None:
            # The body travelled as a blob: queues deliver it whole.
            delivery = msgspec.structs.replace(delivery, body=blobs.get(read_reference(delivery.body)))
        return letters.handle(delivery) != "stays"
    except PostroadError as error:
        log_event("task_handling_failed", message_id=record["messageId"], error=error)
        return False


def _delivery(record: Mapping[str, Any]) -> Delivery:
    system = record.get("attributes", {})
    return Delivery(
        message_id=record["messageId"],
        body=str(record["body"]).encode(errors="replace"),
        attributes=attributes_of(record),
        group=None,
        receipt=record["receiptHandle"],
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        sent_at=_moment(system.get("SentTimestamp")),
        first_received_at=_moment(system.get("ApproximateFirstReceiveTimestamp")),
        sequence=None,
    )


def _moment(milliseconds: str | None) -> datetime:
    return datetime.fromtimestamp(int(milliseconds or 0) / 1000, UTC)


_letters = functools.lru_cache(maxsize=8)(DeadLetterHandler)
"""Returns the handler of a backend's dead letters, made once while the function stays warm."""
