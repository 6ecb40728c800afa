"""What the environment tells alerts."""

from __future__ import annotations

import os
from collections.abc import Mapping


def slack_webhook_url(env: Mapping[str, str] | None = None) -> str | None:
    """Where alerts go, where that is set."""
    return (os.environ if env is None else env).get("SLACK_WEBHOOK_URL") or None


def alerts_allow_loopback(env: Mapping[str, str] | None = None) -> bool:
    """Whether alerts may go to this machine, for tests."""
    return (os.environ if env is None else env).get("POSTROAD_ALERTS_ALLOW_LOOPBACK") == "1"


def archive_queue_url(env: Mapping[str, str] | None = None) -> str | None:
    """Where events are kept that could not be delivered, where that is set."""
    return (os.environ if env is None else env).get("ARCHIVE_QUEUE_URL") or None
