"""What is recorded of a health check."""

from __future__ import annotations

from typing import Any

from postroad.journal.events.fields import Count, Properties


class HealthSummary(Properties, frozen=True, kw_only=True):
    """How many tasks run, and how well."""

    total_processing: Count
    healthy: Count
    warning: Count
    critical: Count
    overtime: Count


class TaskHealthCheck(Properties, frozen=True, kw_only=True):
    """The running tasks were looked at."""

    summary: HealthSummary
    tasks: list[dict[str, Any]]
