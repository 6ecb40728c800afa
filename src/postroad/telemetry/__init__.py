"""Telemetry: one structured line for what leaves or enters the process, without payloads and secrets."""

from postroad.telemetry.audit import Auditor, recorded
from postroad.telemetry.events import LOG_EVENTS
from postroad.telemetry.logs import configure_logs, get_logger
from postroad.telemetry.metrics import counter as counter, gauge as gauge, histogram as histogram
from postroad.telemetry.text import legible, redact as redact
from postroad.telemetry.tracing import traceparent as traceparent, valid_traceparent as valid_traceparent

__all__ = ["LOG_EVENTS", "Auditor", "configure_logs", "get_logger", "legible", "recorded"]
