"""Which page helps when an alarm goes off."""

from __future__ import annotations

from typing import Final

from postroad.topology.declarations import AlarmDecl

_RUNBOOKS: Final = {
    "event_outbox_backlog": "outbox-backlog",
    "event_publish_lag_seconds": "outbox-backlog",
    "event_consumer_lag_seconds": "consumer-lag",
    "dead_letter_count": "failed-rows",
}


def runbook(alarm: AlarmDecl) -> str:
    """What the alarm watches, and where its runbook lies if it has one."""
    said = f"{alarm.metric} of {alarm.resource}"
    page = _RUNBOOKS.get(alarm.metric)
    return said if page is None else f"{said}. Runbook: docs/runbooks/{page}.md"
