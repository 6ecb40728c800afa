from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postroad
from postroad.telemetry import LOG_EVENTS, configure_logs, get_logger

_TASK_LINE = re.compile("(task|worker|job)_[a-z_]+(?<!_id)(?<!_duration)(?<!_child)(?<!_story)")
_RECEIVERS = {
    "bus": "bus_[a-z_]+",
    "inbox": "(consumer|visibility)_[a-z_]+",
    "notifications": "notification_[a-z_]+",
    "receiving": "receiver_[a-z_]+",
}
_LEVELS = {"debug", "info", "warning", "error", "exception"}


@pytest.fixture(autouse=True)
def _keep_the_loggers_as_they_were() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("postroad")
    before = (list(root.handlers), root.level, ours.level)
    # basicConfig(force=True) closes the handlers it removes, and pytest's own are not ours to close.
    root.handlers.clear()
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_a_line_is_one_json_object_that_begins_with_time_level_event_and_service() -> None:
    out = io.StringIO()
    configure_logs("info", "auto", stream=out)

    get_logger("queues").info("queue_sent", queue="orders", attempt=1)

    line = json.loads(out.getvalue())
    assert list(line) == ["ts", "level", "event", "service", "queue", "attempt"]
    assert line["ts"].endswith("Z")


@pytest.mark.parametrize("format", ["json", "console"])
def test_line_ends_and_escape_sequences_in_values_are_escaped(format: str) -> None:
    out = io.StringIO()
    configure_logs("info", format, stream=out)

    get_logger("queues").info("queue_sent", queue="a\r\n{}\x1b[2J\u202e", detail={"x": "\n\x1b[2J"})

    assert out.getvalue().count("\n") == 1
    assert not any(part in out.getvalue() for part in ("\r", "\x1b", "\u202e"))


def test_lines_below_the_level_are_not_written() -> None:
    out = io.StringIO()
    configure_logs("warning", "json", stream=out)

    get_logger("queues").info("queue_sent")

    assert out.getvalue() == ""


def test_a_traceback_on_the_console_is_indented_line_by_line() -> None:
    out = io.StringIO()
    configure_logs("info", "console", stream=out)

    try:
        raise ValueError("one\ntwo")
    except ValueError:
        get_logger("service").exception("part_failed")

    first, *rest = out.getvalue().splitlines()
    assert "part_failed" in first
    assert len(rest) > 2
    assert all(line.startswith("    ") for line in rest)


def test_lines_of_other_libraries_take_the_same_form() -> None:
    out = io.StringIO()
    configure_logs("info", "json", stream=out)

    logging.getLogger("elsewhere").warning("hello %s", "there")

    assert json.loads(out.getvalue())["event"] == "hello there"


def test_unconfigured_lines_go_to_the_program_around_us(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger().addHandler(caplog.handler)

    get_logger("queues").warning("queue_retried", queue="orders")

    assert "queue_retried" in caplog.text


def test_the_names_of_log_lines_are_exactly_those_the_code_uses() -> None:
    logged = {name for path in Path(postroad.__file__).parent.rglob("*.py") for name in _logged(path)}

    assert list(LOG_EVENTS) == sorted(logged)


def _logged(path: Path) -> Iterator[Any]:
    """The names in the first argument of calls such as `_log.info("…")` and `get_logger("…").info("…")`.

    Receivers, dispatchers and tasks name their lines in tables, too, so there every word that begins like one counts.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="_log") | ast.Call(func=ast.Name(id="get_logger")), attr=level),
                args=[first, *_],
            ) if level in _LEVELS:
                yield from (part.value for part in ast.walk(first) if isinstance(part, ast.Constant))
            case ast.Call(func=ast.Name(id="log_event"), args=[ast.Constant(value=word), *_]):
                yield word
            case ast.Constant(value=str(word)) if re.fullmatch(_RECEIVERS.get(path.parent.name, "(?!)"), word):
                yield word
            case ast.Constant(value=str(word)) if path.parent.name == "dispatching" and word.startswith("outbox_"):
                yield word
            case ast.Constant(value=str(word)) if path.parent.name in ("tasks", "jobs") and _TASK_LINE.fullmatch(word):
                yield word
