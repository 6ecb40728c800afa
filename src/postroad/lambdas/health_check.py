"""The function that looks at running tasks every five minutes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from postroad.settings import aws_place, slack_webhook_url
from postroad.tasks.alerts import SlackAlerts
from postroad.tasks.health import HealthCheck
from postroad.wiring import connect


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Check all running tasks, record it, and tell Slack where a webhook is set."""
    return _check(aws_place(), slack_webhook_url()).check().summary


@functools.lru_cache(maxsize=4)
def _check(place: tuple[str, str], webhook: str | None) -> HealthCheck:
    """The check of this stage, opened once for as long as the function stays warm."""
    return HealthCheck(connect(f"aws://{place[0]}"), alerts=None if webhook is None else SlackAlerts(webhook))
