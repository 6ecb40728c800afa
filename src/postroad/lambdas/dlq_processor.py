"""The function behind the dead letters of tasks: each ends its run with one `Task Failed`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from postroad.errors import PostroadError
from postroad.queues import Delivery
from postroad.settings import aws_place
from postroad.tasks import DeadLetterHandler
from postroad.tasks.telling import tell
from postroad.wiring import connect


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Handle the records of the dead-letter queue; what failed or names no task is answered, and stays there."""
    letters = _letters(aws_place())
    failed = [record["messageId"] for record in event["Records"] if not _is_handled(letters, record)]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _is_handled(letters: DeadLetterHandler, record: Mapping[str, Any]) -> bool:
    try:
        return letters.handle(_delivery(record)) != "stays"
    except PostroadError as error:
        tell("task_handling_failed", message_id=record["messageId"], error=str(error))
        return False


def _delivery(record: Mapping[str, Any]) -> Delivery:
    """The record as a queue would have delivered it."""
    told = record.get("attributes", {})
    attributes = {
        name: value["stringValue"]
        for name, value in record.get("messageAttributes", {}).items()
        if value.get("stringValue") is not None
    }
    return Delivery(
        message_id=record["messageId"],
        body=str(record["body"]).encode(errors="replace"),
        attributes=attributes,
        group=None,
        receipt=record["receiptHandle"],
        receive_count=int(told.get("ApproximateReceiveCount", 1)),
        sent_at=_moment(told.get("SentTimestamp")),
        first_received_at=_moment(told.get("ApproximateFirstReceiveTimestamp")),
        sequence=None,
    )


def _moment(milliseconds: str | None) -> datetime:
    return datetime.fromtimestamp(int(milliseconds or 0) / 1000, UTC)


@functools.lru_cache(maxsize=4)
def _letters(place: tuple[str, str]) -> DeadLetterHandler:
    """The dead letters of this stage, opened once for as long as the function stays warm."""
    return DeadLetterHandler(connect(f"aws://{place[0]}"))
