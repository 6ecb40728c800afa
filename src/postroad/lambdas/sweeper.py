"""The function that a schedule calls every minute: it empties what slow queues made wait."""

from __future__ import annotations

from typing import Any

from postroad.lambdas.environment import opened_agents


def handler(event: Any = None, context: object = None) -> dict[str, int]:
    """Send what is held, as far as the queues take it."""
    result = opened_agents().drain()
    return {"sent": result.sent, "held": result.held}
