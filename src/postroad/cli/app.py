"""The program `postroad`: its nouns and verbs, put together."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from postroad.cli import about, configuration, messages, queues, up
from postroad.cli.errors import report
from postroad.cli.output import prepare_streams
from postroad.cli.verbs import Noun, remember, take_shared_options


@functools.cache
def program() -> Any:
    """The whole command tree, built once."""
    app = noun("Typed events that arrive, on an embedded SQLite file or on AWS.", example="postroad up")
    take_shared_options(remember, [])
    app.callback()(remember)
    queue = noun("Make, see, empty and redrive queues.", example="postroad queue list")
    config = noun("See and check the settings.", example="postroad config show")
    for module, place in ((up, app), (queues, queue), (messages, queue), (configuration, config), (about, app)):
        module.add_to(place)
    app.add_typer(queue, name="queue")
    app.add_typer(config, name="config")
    return get_command(app)


def noun(summary: str, *, example: str) -> typer.Typer:
    """A group of verbs."""
    return typer.Typer(
        cls=Noun,
        help=summary,
        epilog=f"\b\nExample:\n  {example}",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run(args: Sequence[str]) -> int:
    """Do what the arguments say and return the exit code; errors are told, never raised."""
    prepare_streams()
    try:
        return program().main(args=list(args), prog_name="postroad", standalone_mode=False) or 0
    except Exception as error:
        return report(error, as_json="--json" in args)


def main() -> None:
    """The entry point of the command `postroad`."""
    sys.exit(run(sys.argv[1:]))
