"""How a log line is made: its fields, their order, and what is escaped in them."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, cast

import structlog
from structlog.typing import Processor

from postroad.telemetry.text import legible

_NOT_SHOWN = frozenset({"event", "service", "level", "ts", "exc_info", "stack_info"})
# What a record of the standard library has already.
_RESERVED = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "exc_info", "stack_info"})
_STAMPED = (
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
)


class Line(dict[str, Any]):
    """The fields of one line; as text `name key=value …`, for programs whose formatter knows nothing of fields."""

    def __str__(self) -> str:
        fields = (f"{key}={_shown(value)}" for key, value in self.items() if key not in _NOT_SHOWN)
        return " ".join((str(self.get("event", "")), *fields))


def _shown(value: object) -> str:
    text = legible(value)
    return f'"{text}"' if not text or any(c in text for c in ' "=') else text


def _for_any_formatter(logger: Any, name: str, line: MutableMapping[str, Any]) -> tuple[tuple[Line], dict[str, Any]]:
    """Hand the line to the standard library: with fields for our formatters, as text and `extra` for all others."""
    extra = {key: value for key, value in line.items() if key not in _RESERVED}
    return (Line(line),), {"extra": {**extra, "_logger": logger, "_name": name}}


def structured(logger: logging.Logger, service: str) -> structlog.stdlib.BoundLogger:
    """A logger of the standard library that takes fields."""
    wrapped = structlog.wrap_logger(
        logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            *_STAMPED,
            _for_any_formatter,
        ],
        service=service,
    )
    return cast(structlog.stdlib.BoundLogger, wrapped)


def json_lines() -> logging.Formatter:
    """One JSON object a line."""
    return _formatter(_in_order, structlog.processors.JSONRenderer(default=str))


def console_lines(*, color: bool) -> logging.Formatter:
    """Lines for people."""
    return _formatter(_unfold, structlog.dev.ConsoleRenderer(timestamp_key="ts", pad_event_to=24, colors=color))


def _formatter(*rendering: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_STAMPED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _escape,
            *rendering,
        ],
    )


def _escape(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: legible(value) if isinstance(value, str) else value for key, value in line.items()}


def _unfold(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A traceback has its lines again, indented so that none of them looks like a line of the log."""
    if isinstance(line.get("exception"), str):
        line["exception"] = "    " + line["exception"].replace("\\n", "\n    ")
    return line


def _in_order(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    first = {key: line.pop(key) for key in ("ts", "level", "event", "service") if key in line}
    return {**first, **line}
