"""Structured log lines on top of the standard library's loggers, so that a program around Postroad keeps the say."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog
from structlog.typing import Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SHARED = (
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
)


def get_logger(service: str) -> structlog.stdlib.BoundLogger:
    """The logger of one part. Until `configure_logs` runs, lines go where the program around us sends its own.

    A call costs microseconds even when its level is off: hot paths ask `isEnabledFor` first.
    """
    logger = structlog.wrap_logger(
        logging.getLogger(f"postroad.{service}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        service=service,
    )
    return cast(structlog.stdlib.BoundLogger, logger)


def configure_logs(level: str, format: str, *, stream: TextIO | None = None, color: bool = True) -> None:
    """Write this process's log lines to `stream` (stderr), readable on a terminal and as JSON elsewhere."""
    out = sys.stderr if stream is None else stream
    console = out.isatty() if format == "auto" else format == "console"
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(_console(color and out.isatty()) if console else _JSON))
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[level], logging.WARNING), force=True)
    logging.getLogger("postroad").setLevel(_LEVELS[level])


def _formatter(rendering: tuple[Processor, ...]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _escape,
            *rendering,
        ],
    )


def _console(color: bool) -> tuple[Processor, ...]:
    return (_unfold, structlog.dev.ConsoleRenderer(timestamp_key="ts", pad_event_to=24, colors=color))


def _escape(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Line ends and escape sequences in values cannot forge a line or drive a terminal."""
    return {key: _legible(value) if isinstance(value, str) else value for key, value in line.items()}


def _legible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _unfold(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A traceback has its lines again, indented so that none of them looks like a line of the log."""
    if isinstance(line.get("exception"), str):
        line["exception"] = "    " + line["exception"].replace("\\n", "\n    ")
    return line


def _in_order(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    first = {key: line.pop(key) for key in ("ts", "level", "event", "service") if key in line}
    return {**first, **line}


_JSON: tuple[Processor, ...] = (_in_order, structlog.processors.JSONRenderer(default=str))
