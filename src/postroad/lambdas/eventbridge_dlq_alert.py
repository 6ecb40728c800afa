"""The function behind the dead letters of EventBridge: it shouts, and keeps the event that it shouts about."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from postroad.errors import PostroadError
from postroad.queues import OutgoingMessage
from postroad.settings import archive_queue_url, aws_place
from postroad.tasks.alerts import SlackAlerts
from postroad.tasks.telling import tell
from postroad.wiring import connect
from postroad.wiring.backend import Backend


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Send an alert for each record; one whose alert or copy failed is answered, and stays in its queue."""
    alerts = SlackAlerts()
    failed = [record["messageId"] for record in event["Records"] if not _is_told(alerts, record)]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _is_told(alerts: SlackAlerts, record: Mapping[str, Any]) -> bool:
    result = alerts.send("\n".join(_lines(record)))
    if not result.ok:
        tell("task_alert_failed", kind="eventbridge", status=result.status, reason=result.reason)
        return False
    try:
        _keep(record)
    except PostroadError as error:
        tell("task_handling_failed", message_id=record["messageId"], error=str(error))
        return False
    return True


def _lines(record: Mapping[str, Any]) -> list[str]:
    failed = _object(record["body"])
    detail = failed.get("detail")
    detail = detail if isinstance(detail, dict) else {}
    return [
        ":rotating_light: *EventBridge delivery failure*",
        f"*Event type:* {detail.get('eventType') or 'unknown'}",
        f"*Detail type:* {failed.get('detail-type') or 'unknown'}",
        f"*Task:* {detail.get('GSI1PK') or 'unknown'}",
        f"*Time:* {failed.get('time') or 'unknown'}",
        f"*Message ID:* {record['messageId']}",
    ]


def _object(body: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(record: Mapping[str, Any]) -> None:
    """Copy the event to the archive, where one is set."""
    url = archive_queue_url()
    if url is None:
        return
    queue = _backend(aws_place()).queue(url.rstrip("/").rpartition("/")[2])
    (result,) = queue.send([OutgoingMessage(str(record["body"]))])
    if result.error is not None:
        raise result.error


@functools.lru_cache(maxsize=4)
def _backend(place: tuple[str, str]) -> Backend:
    """AWS as this function reaches it, opened once for as long as it stays warm."""
    return connect(f"aws://{place[0]}")
