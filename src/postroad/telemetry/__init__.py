"""Telemetry: one structured line for what leaves or enters the process, without payloads and secrets."""

from postroad.telemetry.audit import Auditor, recorded
from postroad.telemetry.events import LOG_EVENTS
from postroad.telemetry.legible import legible
from postroad.telemetry.logs import configure_logs, get_logger

__all__ = ["LOG_EVENTS", "Auditor", "configure_logs", "get_logger", "legible", "recorded"]
