"""The names of all log lines, so that they can be searched for and relied upon."""

from __future__ import annotations

LOG_EVENTS = (
    "archive_failed",
    "archive_unreadable",
    "bus_ack_failed",
    "bus_chore_failed",
    "bus_dead_lettered",
    "bus_duplicate",
    "bus_echo",
    "bus_gap",
    "bus_handled",
    "bus_heartbeat_failed",
    "bus_lease_lost",
    "bus_publish_failed",
    "bus_published",
    "bus_receive_failed",
    "bus_received",
    "bus_retried",
    "bus_stop_timed_out",
    "bus_unhandled",
    "engine_after_commit_failed",
    "housekeeping_swept",
    "http_request",
    "part_failed",
    "part_started",
    "part_stopped",
    "queue_redriven",
    "session_observer_failed",
    "session_reducer_failed",
)
