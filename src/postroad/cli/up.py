"""`postroad up`."""

from __future__ import annotations

from typing import Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.verbs import add_verb


def add_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "up", up, example="postroad up --port 9000 --open", until_stopped=True)


def up(
    call: Call,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Listen here (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Listen here (8787); 0 picks a free one.")] = None,
    load: Annotated[list[str] | None, typer.Option(metavar="MODULE", help="A module to import; repeatable.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change by HTTP.")] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser when ready.")] = False,
) -> None:
    """Start Postroad here, with its HTTP API, until Ctrl-C."""
    from postroad.up import run_up

    settings = call.settings(host=host, port=port, load=load or None, read_only=read_only or None)
    raise typer.Exit(run_up(settings, json_output=call.json, open_browser=open_browser))
