"""Telemetry: log lines, metrics and traces, without payloads and secrets."""

from postroad.telemetry.log_names import LOG_EVENTS
from postroad.telemetry.logs import (
    REQUEST_ID as REQUEST_ID,
    Auditor,
    configure_logs,
    counted,
    get_logger,
    legible,
    recorded,
    redact as redact,
)
from postroad.telemetry.tracing import (
    counter as counter,
    gauge as gauge,
    histogram as histogram,
    traceparent as traceparent,
    valid_traceparent as valid_traceparent,
)

__all__ = ["LOG_EVENTS", "Auditor", "configure_logs", "counted", "get_logger", "legible", "recorded"]
