"""Telemetry: one structured line for what leaves or enters the process, without payloads and secrets."""

from postroad.telemetry.audit import Auditor, recorded
from postroad.telemetry.events import LOG_EVENTS
from postroad.telemetry.logs import configure_logs, get_logger
from postroad.telemetry.text import legible

__all__ = ["LOG_EVENTS", "Auditor", "configure_logs", "get_logger", "legible", "recorded"]
