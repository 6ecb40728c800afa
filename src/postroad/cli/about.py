"""`postroad version|commands` and `postroad config show|check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.telemetry import legible


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of the program."""
    add_verb(app, "version", version, example="postroad version --json")
    add_verb(app, "commands", commands, example="postroad commands --json")


def version(call: Call) -> None:
    """Print the version."""
    from postroad import __version__

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


def add_config_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad config`."""
    add_verb(app, "show", show, example="postroad config show --json")
    add_verb(app, "check", check, example="postroad config check --config staging.toml")


def show(call: Call) -> None:
    """Show every setting with its value and where it comes from; secrets are starred."""
    from rich.text import Text

    from postroad.cli.tables import table

    items = call.settings().items()
    rows = (
        [
            Text(item["key"], "bold"),
            Text(_shown(item["value"])),
            Text(item["source"], "" if item["source"] == "default" else "green"),
            Text(item["env"], "dim"),
        ]
        for item in items
    )
    call.show({"items": items}, table(["KEY", "VALUE", "SOURCE", "VARIABLE"], rows))


def check(call: Call) -> None:
    """Validate flags, environment and file without starting anything."""
    items = call.settings().items()
    given = sum(item["source"] != "default" for item in items)
    call.show({"ok": True}, f"ok: {given} of {len(items)} settings are given, the others have their defaults")


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return legible(", ".join(value) if isinstance(value, list) else value)
