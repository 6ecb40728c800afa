"""The function that checks running tasks every five minutes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from postroad.lambdas import opened_backend
from postroad.settings import slack_webhook_url
from postroad.tasks import HealthCheck, SlackAlerts
from postroad.wiring import Backend


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Check all running tasks, record the result, and notify Slack if a webhook is set."""
    return _check(opened_backend(), slack_webhook_url()).check().summary


@functools.lru_cache(maxsize=8)
def _check(backend: Backend, webhook: str | None) -> HealthCheck:
    """Return the check of a backend, made once while the function stays warm."""
    return HealthCheck(backend, alerts=None if webhook is None else SlackAlerts(webhook))
