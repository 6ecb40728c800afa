"""The names of all log lines, so that they can be searched for and relied upon."""

from __future__ import annotations

LOG_EVENTS = (
    "http_request",
    "part_failed",
    "part_started",
    "part_stopped",
    "queue_dead_lettered",
    "queue_received",
    "queue_redriven",
    "queue_retried",
    "queue_sent",
)
