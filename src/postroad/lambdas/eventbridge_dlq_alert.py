"""The function behind the dead letters of EventBridge: it shouts, and keeps the event that it shouts about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.errors import PostroadError
from postroad.lambdas.environment import attributes_of, opened_backend
from postroad.queues import OutgoingMessage
from postroad.settings import archive_queue_url
from postroad.tasks import SlackAlerts, log_event


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Send an alert for each record; one whose alert or copy failed is answered, and stays in its queue."""
    alerts = SlackAlerts()
    failed = [record["messageId"] for record in event["Records"] if not _is_told(alerts, record)]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _is_told(alerts: SlackAlerts, record: Mapping[str, Any]) -> bool:
    result = alerts.send("\n".join(_lines(record)))
    if not result.ok:
        log_event("task_alert_failed", kind="eventbridge", status=result.status, reason=result.reason)
        return False
    try:
        _keep(record)
    except PostroadError as error:
        log_event("task_handling_failed", message_id=record["messageId"], error=error)
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
    """Copy the event to the archive where one is set, with what EventBridge says of its failure."""
    url = archive_queue_url()
    if url is None:
        return
    (result,) = opened_backend().queue(url).send([OutgoingMessage(str(record["body"]), attributes_of(record))])
    if result.error is not None:
        raise result.error
