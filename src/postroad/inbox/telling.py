"""What consumers tell: one log line for each thing that happens to a message, and never its payload."""

from __future__ import annotations

from postroad.telemetry import get_logger
from postroad.telemetry.metrics import counter


def tell_conflict(consumer: str, event_id: str) -> None:
    """Count and write down that a known event id came with another content."""
    counter("event_inbox_conflicts").labels(consumer).inc()
    get_logger("inbox").warning("inbox_conflict", consumer=consumer, event_id=event_id)
