"""Asking before something is destroyed."""

from __future__ import annotations

import sys

import typer

from postroad.cli.output import legible, write
from postroad.errors import InvalidInput


def confirm_name(name: str, confirm: str | None, effect: str) -> None:
    """Go on only if the thing's name was given again, by `--confirm` or at the terminal."""
    if confirm is None:
        if not sys.stdin.isatty():
            raise InvalidInput(
                f"{effect} needs a confirmation", field="confirm",
                remedy=f"Repeat the command with --confirm {name}; nothing was changed.",
            )  # fmt: skip
        write(f"This {effect}.", sys.stderr)
        confirm = typer.prompt("Type the name to go on", err=True)
    if confirm != name:
        raise InvalidInput(
            f'"{legible(confirm)}" does not confirm "{name}"', field="confirm", remedy="Nothing was changed."
        )


def confirm_yes(yes: bool, effect: str) -> None:
    """Go on only if `--yes` was given or the person at the terminal agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"{effect} needs a confirmation", field="yes", remedy="Repeat the command with --yes; nothing was changed."
        )
    write(f"This {effect}.", sys.stderr)
    if not typer.confirm("Go on?", err=True):
        raise InvalidInput("not confirmed", field="yes", remedy="Nothing was changed.")
