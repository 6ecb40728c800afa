"""`postroad demo`: the demo in a temporary directory, or played once to its end, and the repair of its failure."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad import signals
from postroad.cli.call import Call, verb
from postroad.cli.output import write
from postroad.cli.parameters import duration_option
from postroad.errors import InvalidInput
from postroad.telemetry import counted

if TYPE_CHECKING:
    from postroad.settings import Settings

_LEAST_SECONDS = 1.0


@verb("demo", "--once --json", until_stopped=True)
def demo(
    call: Call,
    action: Annotated[
        Literal["repair"] | None, typer.Argument(metavar="repair", help="Repair the push provider of a demo.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Play the whole story unattended, and check it.")] = False,
    seconds: Annotated[float | None, duration_option("With --once, how long there is traffic (20s).")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="The port to listen on (8787); 0 picks a free one.")
    ] = None,
) -> None:
    """Show everything at work, with a failure that you repair."""
    if action is not None and (once or seconds is not None or port is not None):
        raise InvalidInput("repair takes no other option than --url", field="action", remedy="Leave the others out.")
    if seconds is not None and (not once or seconds < _LEAST_SECONDS):
        raise InvalidInput(
            f"seconds: needs --once, and at least {_LEAST_SECONDS:g}",
            field="seconds",
            remedy="Give --once --seconds 20.",
        )
    if action == "repair":
        signals.release()
        _repair(call)
    elif once:
        signals.release()
        _once(call, 20.0 if seconds is None else seconds)
    else:
        _watch(call, port)


def _settings(call: Call, **flags: Any) -> Settings:
    """Return the settings, with few log lines unless more are asked for."""
    settings = call.settings(**flags)
    return replace(settings, log_level="error") if settings.source("log_level") == "default" else settings


def _watch(call: Call, port: int | None) -> None:
    from postroad.up import run_up

    with tempfile.TemporaryDirectory(prefix="postroad-demo-") as folder:
        url = call.url or f"sqlite:///{Path(folder) / 'postroad-demo.db'}"
        settings = replace(_settings(call, port=port), url=url)
        code = run_up(settings, json_output=call.json, open_browser=True, demo=True, narrated=not call.json)
    raise typer.Exit(code)


def _once(call: Call, seconds: float) -> None:
    from postroad.telemetry import configure_logs
    from postroad.up.demo import play_once

    settings = _settings(call)
    configure_logs(settings.log_level, settings.log_format, color=call.color)
    with signals.ended_by_sigterm():
        played = play_once(settings, seconds, lambda text: None if call.json else write(text, sys.stderr))
    call.show(
        played,
        f"{played.published:,} published, {played.handled:,} handled in {played.seconds:g} s",
        f"{counted(played.dead_lettered, 'dead letter')}, {played.redriven:,} redriven",
        f"{played.lost:,} lost, {played.duplicated_effects:,} effects made twice, ledger sum {played.ledger_sum}",
        ok=played.ok,
    )


def _repair(call: Call) -> None:
    from postroad.up.demo import DEMO_URL, open_story

    call.settings()
    with open_story(call.url or DEMO_URL) as story:
        story.repair()
        failure = story.failure()
    waiting = f"; {counted(failure.dead_letters, 'dead letter')} can be redriven" if failure.dead_letters else ""
    call.show(failure, f"the push provider is {_SAID[failure.state]}{waiting}")


_SAID = {"healthy": "healthy: nothing to repair yet", "repaired": "repaired", "redriven": "repaired"}
