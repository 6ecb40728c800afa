"""Logs: structured lines on top of the standard library's loggers, text made safe to show, and audit records.

The program around Postroad decides where lines go. structlog is imported when the first logger is made, because a
short command needs none.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, cast

from postroad.errors import ConfigurationError, without_credentials

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NOT_SHOWN = frozenset({"event", "service", "level", "ts", "exc_info", "stack_info"})
# The attributes that a record of the standard library already has.
_RESERVED = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "exc_info", "stack_info"})
_MAX_ERROR = 500
HIDDEN: Final = "***"
_KEY: Final = re.compile(
    r"""(?<![\w-])(?![\w-]{0,60}(?:Error|Exception)\b)      # the class of an error is not the name of a secret
    (?P<name>[\w-]{0,30}(?:passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)s?[\w-]{0,30}
    ["']?\ ?[=:]\ ?)(?P<value>"[^"]*"|'[^']*'|[^\s"',;&)\]}]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(?P<name>(?:bearer|basic) +)[\w.~+/=-]{8,}", re.IGNORECASE)
_KNOWN: Final = re.compile(
    r"""\b(?:AKIA|ASIA)[A-Z0-9]{16}\b                         # AWS
    |\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*                           # a JSON web token
    |\b(?:pr_|gh[pousr]_|sk_live_|xox[abpr]-)[\w-]{16,}       # Postroad, GitHub, Stripe, Slack
    |(?<=hooks\.slack\.com/services/)[\w/]+
    |-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|$)""",
    re.VERBOSE | re.DOTALL,
)


def legible(value: object) -> str:
    """Return the text with control characters and direction marks escaped, so that data cannot forge a log line.

    Args:
        value: The text, or anything with one.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, word: str, plural: str | None = None) -> str:
    """Return a number with its word, such as `1 message`, `0 messages` or `1,200 messages`.

    Args:
        number: How many there are.
        word: The word for one of them.
        plural: The word for several; by default the word with an s.
    """
    return f"{number:,} {word if number == 1 else plural or f'{word}s'}"


def redact(text: str) -> str:
    """Return the text without the passwords, tokens and keys that can be recognised by their form or name."""
    text = _KNOWN.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\g<name>{HIDDEN}", text)
    text = without_credentials(text)
    return _KEY.sub(rf"\g<name>{HIDDEN}", text)


class Line(dict[str, Any]):
    """The fields of one line; as text `name key=value …`, for programs whose formatter does not know fields."""

    def __str__(self) -> str:
        fields = (f"{key}={_quoted(value)}" for key, value in self.items() if key not in _NOT_SHOWN)
        return " ".join((str(self.get("event", "")), *fields))


def _quoted(value: object) -> str:
    text = legible("\n".join(map(str, value)) if isinstance(value, list) else value)
    return f'"{text}"' if not text or any(c in text for c in ' "=') else text


def get_logger(service: str) -> BoundLogger:
    """Return the logger of one service. Until `configure_logs` runs, the program around us decides where lines go.

    A call costs microseconds even when its level is off: hot paths ask `isEnabledFor` first.

    Args:
        service: The part that writes, such as "bus".
    """
    import structlog

    wrapped = structlog.wrap_logger(
        logging.getLogger(f"postroad.{service}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, *_stamps(), _for_any_formatter],
        service=service,
    )
    return cast("BoundLogger", wrapped)


def configure_logs(level: str, format: str, *, stream: TextIO | None = None, color: bool = True) -> None:
    """Write this process's log lines to `stream`, by default stderr: for people on a terminal, as JSON elsewhere.

    Args:
        level: The lowest level that is written.
        format: "console", "json", or "auto" for what suits the stream.
        stream: Where to.
        color: Whether lines for people have colours.
    """
    import structlog

    out = sys.stderr if stream is None else stream
    rendering: tuple[Processor, ...] = (_in_order, structlog.processors.JSONRenderer(default=str))
    if out.isatty() if format == "auto" else format == "console":
        colors = color and out.isatty()
        rendering = (
            _indent_traceback,
            structlog.dev.ConsoleRenderer(timestamp_key="ts", pad_event_to=24, colors=colors),
        )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_stamps(),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _escape,
            *rendering,
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[level], logging.WARNING), force=True)
    logging.getLogger("postroad").setLevel(_LEVELS[level])


@cache
def _stamps() -> tuple[Processor, ...]:
    import structlog

    return structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts")


def _for_any_formatter(logger: Any, name: str, line: MutableMapping[str, Any]) -> tuple[tuple[Line], dict[str, Any]]:
    """Pass the line to the standard library: as fields for our formatters, as text and `extra` for all others."""
    extra = {key: value for key, value in line.items() if key not in _RESERVED}
    return (Line(line),), {"extra": {**extra, "_logger": logger, "_name": name}}


def _escape(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: _escaped(value) for key, value in line.items()}


def _escaped(value: Any) -> Any:
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    return legible(value) if isinstance(value, str) else value


def _indent_traceback(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Break a traceback into lines again, indented so that none of them looks like a line of the log.

    What a failed task raised and printed last is shown in the same place.
    """
    found = [*line.pop("traceback")] if isinstance(line.get("traceback"), list) else []
    if isinstance(line.get("last_lines"), list):
        found += ["its last output:", *(f"  {each}" for each in line.pop("last_lines"))]
    if isinstance(line.get("exception"), str):
        found += line["exception"].split("\\n")
    if found:
        line["exception"] = "\n".join(f"    {each}" for each in found)
    return line


def _in_order(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    first = {key: line.pop(key) for key in ("ts", "level", "event", "service") if key in line}
    return {**first, **line}


REQUEST_ID: ContextVar[str | None] = ContextVar("postroad_request", default=None)
"""The id of the HTTP request that is being answered, which audit records name."""


class Auditor(Protocol):
    """Keeps a record of who changed what."""

    def append(self, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None) -> object:
        """Record that `actor` did `action` to `target`; `detail` describes it."""
        ...


@contextmanager
def recorded(
    log: Auditor | None, action: str, target: str, detail: Mapping[str, Any], *, actor: str | None = None
) -> Iterator[dict[str, Any]]:
    """Record an operator's change: `{action}.start` before the block and `{action}.end` after it, with its counts.

    The block adds the counts to the dictionary that it gets. The end is recorded if the block raises, too.

    Args:
        log: The audit file; None to record nothing.
        action: What is done, such as `queue.purge`.
        target: What it is done to.
        detail: Names and values that describe it.
        actor: Who does it.

    Raises:
        ConfigurationError: The start cannot be written, and nothing was changed; or the change was made and its end
            cannot be written.
    """
    if log is None:
        yield {}
        return
    request_id = REQUEST_ID.get()
    request = {} if request_id is None else {"request_id": request_id}
    log.append(f"{action}.start", target, {**detail, **request}, actor=actor)
    done: dict[str, Any] = {}
    try:
        yield done
    except BaseException as error:
        text = legible(redact(f"{type(error).__name__}: {error}"))[:_MAX_ERROR]
        failure = {"interrupted": True} if isinstance(error, KeyboardInterrupt) else {}
        # The caller has to see the first error.
        with suppress(ConfigurationError):
            log.append(f"{action}.end", target, {**done, **failure, "error": text, **request}, actor=actor)
        raise
    try:
        log.append(f"{action}.end", target, {**done, **request}, actor=actor)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{action} of {target} is done ({done}), and its end could not be recorded: {error}",
            field=error.field,
            remedy="Make the audit file writable again; do not repeat the command only to record it.",
        ) from error
