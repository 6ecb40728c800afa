"""The function that looks at running tasks every five minutes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from postroad.lambdas.environment import opened_backend
from postroad.settings import slack_webhook_url
from postroad.tasks import HealthCheck, SlackAlerts
from postroad.wiring import Backend


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Check all running tasks, record it, and tell Slack where a webhook is set."""
    return _check(opened_backend(), slack_webhook_url()).check().summary


@functools.lru_cache(maxsize=8)
def _check(backend: Backend, webhook: str | None) -> HealthCheck:
    """The check of a backend, made once for as long as the function stays warm."""
    return HealthCheck(backend, alerts=None if webhook is None else SlackAlerts(webhook))
