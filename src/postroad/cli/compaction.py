"""`postroad compact`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.verbs import add_verb

if TYPE_CHECKING:
    from postroad.engine.upkeep import Compaction


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "compact", compact, example="postroad compact --url sqlite:///work.db")


def compact(
    call: Call,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Write a large file of an earlier version anew; writers wait.")
    ] = False,
) -> None:
    """Give the disk what the embedded file no longer needs, while others use it."""
    with call.backend() as backend, _progress(call) as progress:
        done = backend.compact(rebuild=rebuild, progress=progress)
    document = {
        "given_back_bytes": done.given_back_bytes,
        "before_bytes": done.before_bytes,
        "after_bytes": done.after_bytes,
        "steps": done.steps,
        "rebuilt": done.rebuilt,
    }
    call.show(document, f"gave back {_megabytes(done.given_back_bytes)}; {_megabytes(done.after_bytes)} are in use")


@contextmanager
def _progress(call: Call) -> Iterator[Callable[[Compaction], None] | None]:
    """Count on one line of the terminal; nothing elsewhere."""
    if call.json or not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda done: _overwrite(f"step {done.steps:,}, {_megabytes(done.after_bytes)} left")
    finally:
        _overwrite("")


def _overwrite(text: str) -> None:
    sys.stderr.write(f"\r{text:<60}\r")
    sys.stderr.flush()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
