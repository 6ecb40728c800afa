"""Everything the CLI writes leaves through here: one document on stdout, words for people around it."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

_PIPE_WIDTH = 400


def prepare_streams() -> None:
    """Let a stream that is closed, or that cannot show a character, not end the program."""
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
    write(json.dumps(document, ensure_ascii=not readable, default=_builtins), out)


def _builtins(document: Any) -> Any:
    """Return a view as JSON's own types; views are what the HTTP API answers too."""
    import msgspec

    return msgspec.to_builtins(document)


def write(text: str, stream: TextIO | None = None) -> None:
    """Write text and a line end. When nobody reads any more, the command ends quietly."""
    out = sys.stdout if stream is None else stream
    try:
        out.write(text if text.endswith("\n") else text + "\n")
        out.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end; that must find an open file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise typer.Exit(0) from None


def render(*parts: RenderableType, color: bool, stream: TextIO | None = None) -> str:
    """The parts as text: in the terminal's width, with colour only on a terminal."""
    from rich.console import Console

    out = sys.stdout if stream is None else stream
    terminal = out.isatty()
    console = Console(
        file=io.StringIO(),
        width=shutil.get_terminal_size().columns if terminal else _PIPE_WIDTH,
        color_system="standard" if terminal and color else None,
        force_terminal=terminal and color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
