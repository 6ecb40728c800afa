"""What the CLI prints: one document on stdout, errors in at most three lines, and questions before it deletes."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import typer

from postroad import errors
from postroad.cli.packages import views
from postroad.cli.parameters import short_duration
from postroad.settings import debugging, no_color
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 400
TELL_EVERY_SECONDS = 10.0
"""How often long work says in a pipe what it does."""


def prepare_streams() -> None:
    """Keep the program running if a stream is closed or cannot show a character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # open as long as the program runs
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def write_json(document: Any, stream: TextIO | None = None) -> None:
    """Write one JSON document on one line."""
    out = sys.stdout if stream is None else stream
    readable = (out.encoding or "").lower().replace("-", "") == "utf8"

    def builtins(view: Any) -> Any:
        return msgspec.to_builtins(view)

    write(json.dumps(document, ensure_ascii=not readable, default=builtins), out)


def write(text: str, stream: TextIO | None = None) -> None:
    """Write text and a line end. If the reader is gone, end the command quietly; raise any other failure."""
    out = sys.stdout if stream is None else stream
    try:
        out.write(text if text.endswith("\n") else text + "\n")
        out.flush()
    except OSError as error:
        # The interpreter flushes once more when it exits, and must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(0) from None
        raise


def console(stream: TextIO, *, color: bool, terminal: bool = True) -> Console:
    """Return a console that writes to the stream in the terminal's width; a pipe has room for any table."""
    from rich.console import Console

    return Console(
        file=stream,
        width=shutil.get_terminal_size().columns if terminal else _PIPE_WIDTH,
        color_system="standard" if terminal and color else None,
        force_terminal=terminal,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
    )


def live_console(stream: TextIO, *, color: bool) -> Console | None:
    """Return a console whose lines can be drawn anew; None if the stream is not a terminal that can do so."""
    page = console(stream, color=color) if stream.isatty() else None
    return page if page is not None and page.is_interactive else None


def render(*parts: RenderableType, color: bool) -> str:
    """Return the parts as text in the terminal's width, with colour only on a terminal.

    A plain string stays one line, which the terminal wraps: a cursor in it can be copied.
    """
    terminal = sys.stdout.isatty()
    page = console(io.StringIO(), color=color, terminal=terminal)
    with page.capture() as captured:
        for part in parts:
            page.print(part, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def wrapped(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of text; on a terminal they are broken between words, and what follows a break is indented."""
    if not sys.stdout.isatty():
        yield from lines
        return
    width = shutil.get_terminal_size().columns
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        yield from textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]


ANSWER_IS_NO = 1
WRONG_USAGE = 2
NOT_REACHABLE = 3
INTERRUPTED = 130
_WRONG_USAGE = (
    *(errors.ConfigurationError, errors.InvalidInput, errors.NotSupported, errors.UnknownEventType),
    *(errors.QueueNotFound, errors.TopicNotFound, errors.StreamNotFound),
)


def report(error: Exception, *, as_json: bool) -> int:
    """Print the error on stderr and return the exit code."""
    if debugging():
        import traceback

        traceback.print_exception(error)
    if isinstance(error, typer.Abort):
        write("interrupted", sys.stderr)
        return INTERRUPTED
    known = _as_postroad_error(error)
    _say(known, as_json=as_json)
    return exit_code(known)


def exit_code(error: errors.PostroadError) -> int:
    """Return 1 if the answer is no, 2 for wrong usage, input or configuration, 3 if something is not reachable."""
    if isinstance(error, _WRONG_USAGE):
        return WRONG_USAGE
    return NOT_REACHABLE if isinstance(error, errors.TransportError | errors.StorageFull) else ANSWER_IS_NO


def _say(error: errors.PostroadError, *, as_json: bool) -> None:
    if as_json:
        write_json(views.problem(error), sys.stderr)
        return
    lines = [f"error: {_one_line(str(error))}"]
    if error.nearest is not None:
        lines.append(f'did you mean "{legible(error.nearest)}"?')
    lines.append(_one_line(error.remedy))
    write("\n".join(lines), sys.stderr)


def _one_line(text: str) -> str:
    return legible(" ".join(text.split()))


def _as_postroad_error(error: Exception) -> errors.PostroadError:
    if isinstance(error, errors.PostroadError):
        return error
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, OSError):
        return errors.PostroadError(
            f"{type(error).__name__}: {error}", remedy="Check the file, the disk and the permissions."
        )
    return errors.PostroadError(
        f"unexpected {type(error).__name__}", remedy="POSTROAD_DEBUG=1 shows where; please report it with that text."
    )


def _usage(error: typer.TyperException) -> errors.InvalidInput:
    """Return the error of the command line's parser as one of ours."""
    context = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    possibilities = sorted(getattr(error, "possibilities", None) or [])
    path = "postroad" if context is None else context.command_path
    message = error.message if possibilities else error.format_message()
    return errors.InvalidInput(
        message[:1].lower() + message[1:],
        field=None if parameter is None else parameter.name,
        nearest=possibilities[0] if possibilities else None,
        remedy=f"`{path} --help` shows how it is used.",
    )


def confirm_name(name: str, confirm: str | None, effect: str) -> None:
    """Raise `InvalidInput` unless the name was given again, by `--confirm` or at the terminal."""
    if confirm is None:
        if not sys.stdin.isatty():
            raise errors.InvalidInput(
                f'to go on, "{name}" must be confirmed: this {effect}',
                field="confirm",
                remedy=f"Repeat the command with --confirm {name}; nothing was changed.",
            )
        write(f"This {effect}.", sys.stderr)
        confirm = typer.prompt("Type the name to go on", err=True)
    if confirm != name:
        raise errors.InvalidInput(
            f'"{legible(confirm)}" does not confirm "{name}"', field="confirm", remedy="Nothing was changed."
        )


def confirm_yes(yes: bool, action: str, effect: Callable[[], str]) -> None:
    """Raise `InvalidInput` unless `--yes` was given, or the person at the terminal has seen the effect and agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise errors.InvalidInput(
            f"{action} needs a confirmation", field="yes", remedy="Repeat the command with --yes; nothing was changed."
        )
    write(f"This {effect()}.", sys.stderr)
    if not typer.confirm("Go on?", err=True):
        raise errors.InvalidInput("not confirmed", field="yes", remedy="Nothing was changed.")


@contextmanager
def progress_line(
    describe: Callable[[Any], str], *, quiet: bool, start: str = "working", step: int = 0, color: bool = True
) -> Iterator[Callable[[Any], None]]:
    """Yield a function that takes the progress of long work, and tell on stderr what is being done.

    On a terminal it is one live line with the time that has passed; in a pipe a line every 10 seconds.

    Args:
        describe: Returns the text for what the work says about itself.
        quiet: Whether to tell nothing.
        start: The text until the work says something.
        step: In a pipe, tell as well when the progress, a number, has passed a multiple of this; 0 for never.
        color: Whether a terminal may show colour.
    """
    if quiet:
        yield lambda so_far: None
        return
    page = live_console(sys.stderr, color=color and not no_color())
    if page is not None:
        with _live_line(page, start) as change:
            yield lambda so_far: change(describe(so_far))
        return
    passed = 0

    def tell(so_far: Any) -> None:
        nonlocal passed
        change(describe(so_far))
        if step and so_far // step > passed:
            passed = so_far // step
            write(describe(so_far), sys.stderr)

    with _repeated_line(start) as change:
        yield tell


@contextmanager
def _live_line(page: Console, text: str) -> Iterator[Callable[[str], None]]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    wrapped = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    columns = (SpinnerColumn("line"), wrapped, TimeElapsedColumn())
    with Progress(*columns, console=page, transient=True) as live:
        task = live.add_task(text, total=None)
        yield lambda changed: live.update(task, description=changed)


@contextmanager
def _repeated_line(text: str) -> Iterator[Callable[[str], None]]:
    began, current, ended = time.monotonic(), [text], threading.Event()

    def tell() -> None:
        while not ended.wait(TELL_EVERY_SECONDS):
            with suppress(OSError, ValueError, typer.Exit):
                write(f"{current[0]} ({short_duration(time.monotonic() - began)} so far)", sys.stderr)

    def change(changed: str) -> None:
        current[0] = changed

    reporter = threading.Thread(target=tell, name="postroad-progress", daemon=True)
    reporter.start()
    try:
        yield change
    finally:
        ended.set()
        reporter.join()
