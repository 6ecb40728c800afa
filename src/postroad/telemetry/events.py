"""The names of all log lines, so that they can be searched for and relied upon."""

from __future__ import annotations

LOG_EVENTS = (
    "housekeeping_swept",
    "http_request",
    "part_failed",
    "part_started",
    "part_stopped",
    "queue_redriven",
    "session_observer_failed",
    "session_reducer_failed",
)
