"""Structured log lines on top of the standard library's loggers, so that a program around Postroad keeps the say.

structlog is imported when the first logger is made: a short command needs none.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def get_logger(service: str) -> BoundLogger:
    """The logger of one part. Until `configure_logs` runs, lines go where the program around us sends its own.

    A call costs microseconds even when its level is off: hot paths ask `isEnabledFor` first.
    """
    from postroad.telemetry.lines import structured

    return structured(logging.getLogger(f"postroad.{service}"), service)


def configure_logs(level: str, format: str, *, stream: TextIO | None = None, color: bool = True) -> None:
    """Write this process's log lines to `stream` (stderr), readable on a terminal and as JSON elsewhere."""
    from postroad.telemetry.lines import console_lines, json_lines

    out = sys.stderr if stream is None else stream
    console = out.isatty() if format == "auto" else format == "console"
    handler = logging.StreamHandler(out)
    handler.setFormatter(console_lines(color=color and out.isatty()) if console else json_lines())
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[level], logging.WARNING), force=True)
    logging.getLogger("postroad").setLevel(_LEVELS[level])
