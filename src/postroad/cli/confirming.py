"""Asking before something is destroyed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from postroad.cli.output import write
from postroad.errors import InvalidInput
from postroad.telemetry import legible


def confirm_name(name: str, confirm: str | None, effect: str) -> None:
    """Go on only if the thing's name was given again, by `--confirm` or at the terminal."""
    if confirm is None:
        if not sys.stdin.isatty():
            raise InvalidInput(
                f'to go on, "{name}" must be confirmed: this {effect}', field="confirm",
                remedy=f"Repeat the command with --confirm {name}; nothing was changed.",
            )  # fmt: skip
        write(f"This {effect}.", sys.stderr)
        confirm = typer.prompt("Type the name to go on", err=True)
    if confirm != name:
        raise InvalidInput(
            f'"{legible(confirm)}" does not confirm "{name}"', field="confirm", remedy="Nothing was changed."
        )


def confirm_yes(yes: bool, action: str, effect: Callable[[], str]) -> None:
    """Go on only if `--yes` was given, or the person at the terminal has seen the effect and agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"{action} needs a confirmation", field="yes", remedy="Repeat the command with --yes; nothing was changed."
        )
    write(f"This {effect()}.", sys.stderr)
    if not typer.confirm("Go on?", err=True):
        raise InvalidInput("not confirmed", field="yes", remedy="Nothing was changed.")
