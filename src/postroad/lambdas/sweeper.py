"""The function that a schedule calls every minute: it sends the events that slow queues held back."""

from __future__ import annotations

from typing import Any

from postroad.lambdas import opened_agents


def handler(event: Any = None, context: object = None) -> dict[str, int]:
    """Send what is held back, as far as the queues accept it."""
    result = opened_agents().drain()
    return {"sent": result.sent, "held": result.held}
