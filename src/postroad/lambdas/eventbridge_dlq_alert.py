"""The function behind the dead letters of EventBridge: it sends an alert and keeps a copy of the event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroad.errors import PostroadError
from postroad.lambdas import attributes_of, failures, opened_backend
from postroad.queues import OutgoingMessage
from postroad.settings import archive_queue_url
from postroad.tasks import SlackAlerts, log_event


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Send an alert for each record; return those whose alert or copy failed, which stay in their queue."""
    alerts = SlackAlerts()
    return failures(event["Records"], lambda record: _is_handled(alerts, record))


def _is_handled(alerts: SlackAlerts, record: Mapping[str, Any]) -> bool:
    alert = alerts.send("\n".join(_lines(record)))
    if not alert.ok:
        log_event("task_alert_failed", kind="eventbridge", status=alert.status, reason=alert.reason)
        return False
    try:
        if (url := archive_queue_url()) is not None:
            # A copy of the event, with what EventBridge says about the failure.
            copy = OutgoingMessage(str(record["body"]), attributes_of(record))
            (result,) = opened_backend().queue(url).send([copy])
            if result.error is not None:
                raise result.error
    except PostroadError as error:
        log_event("task_handling_failed", message_id=record["messageId"], error=error)
        return False
    return True


def _lines(record: Mapping[str, Any]) -> list[str]:
    try:
        failed = json.loads(record["body"])
    except (ValueError, RecursionError):
        failed = None
    failed = failed if isinstance(failed, dict) else {}
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
