"""`postroad version|commands`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from postroad.cli.call import Call
from postroad.cli.verbs import add_verb


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of the program."""
    add_verb(app, "version", version, example="postroad version --json")
    add_verb(app, "commands", commands, example="postroad commands --json")


def version(call: Call) -> None:
    """Print the version."""
    from postroad.version import __version__

    call.show({"version": __version__}, f"postroad {__version__}")


def commands(call: Call) -> None:
    """List every command with what it does."""
    from rich.text import Text

    from postroad.cli.app import program
    from postroad.cli.tables import table

    items = list(_leaves(program(), ""))
    rows = (
        [Text(i["command"], "bold"), Text("destroys" if i["destructive"] else "", "red"), Text(i["summary"])]
        for i in items
    )
    call.show({"items": items}, table(["COMMAND", "", "SUMMARY"], rows))


def _leaves(command: Any, path: str) -> Iterator[dict[str, Any]]:
    nested = getattr(command, "commands", None)
    if nested is None:
        summary = (command.help or "").strip().split("\n", 1)[0]
        yield {"command": path, "summary": summary, "destructive": getattr(command.callback, "destructive", False)}
        return
    for name, each in nested.items():
        yield from _leaves(each, f"{path} {name}".strip())
