"""`postroad up|status|demo`: run everything, ask what runs, and show it at work with a failure to repair."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from postroad import signals
from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.output import write
from postroad.cli.packages import http, rich_text, up_command, up_demo_once, up_demo_story, views
from postroad.cli.parameters import argument, duration_option, flag, option, short_duration
from postroad.errors import InvalidInput, Unauthorized, Unavailable
from postroad.settings import Settings, beside
from postroad.telemetry import configure_logs, counted, legible

Port = Annotated[int | None, option("PORT", "The port to listen on (8787); 0 picks a free one.")]
_SECONDS: Final = 10.0
_COLORS: Final = {"running": "green", "starting": "yellow", "failed": "red"}
_LEAST_SECONDS: Final = 1.0
_SAID: Final = {"healthy": "healthy: nothing to repair yet", "repaired": "repaired", "redriven": "repaired"}


@verb("up", "--port 9000 --open", until_stopped=True)
def up(
    call: Call,
    host: Annotated[str | None, option("HOST", "The address to listen on (127.0.0.1).")] = None,
    port: Port = None,
    load: Annotated[list[str] | None, option("MODULE", "A module to import; repeatable.")] = None,
    read_only: Annotated[bool, flag("--read-only", "Refuse every change over HTTP.")] = False,
    open_browser: Annotated[bool, flag("--open", "Open the browser when ready.")] = False,
    demo: Annotated[bool, flag("--demo", "Play a demo, with data in postroad-demo.db.")] = False,
) -> None:
    """Run Postroad here, with its API and dashboard, until Ctrl-C."""
    settings = call.settings(host=host, port=port, load=load or None, read_only=read_only or None)
    if demo and call.url is None:
        # Never the data that the environment or a file names.
        settings = replace(settings, url=up_demo_story.DEMO_URL)
    raise typer.Exit(up_command.run_up(settings, json_output=call.json, open_browser=open_browser, demo=demo))


@verb("status", "--url sqlite:///shop.db")
def status(call: Call) -> None:
    """Show the parts of the `postroad up` that runs on this data; exit 1 if one has failed, 3 if none runs."""
    settings = call.settings()
    url = _address(settings)
    found = _ask(url, up_command.token_of(settings) or http.read_secret(beside(settings.url, "token")))
    rows = (
        (
            part.name,
            part.process,
            part.pid,
            rich_text.Text(part.state, _COLORS[part.state]),
            part.restarts,
            part.missing or None,
        )
        for part in found.parts
    )
    where = f"Postroad {found.version} at {url}, up for {short_duration(found.uptime_seconds)}"
    call.show(
        found,
        f"{where}{', read-only' if found.read_only else ''}, data {legible(found.backend.url)}",
        table(["PART", "PROCESS", ">PID", "STATE", ">RESTARTS", "WAITS FOR"], rows),
        ok=all(part.state != "failed" for part in found.parts),
    )


def _address(settings: Settings) -> str:
    """Return the address that `postroad up` left beside its data."""
    try:
        return str(msgspec.json.decode(beside(settings.url, "up").read_bytes())["url"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        raise _not_running(f"no `postroad up` runs on {settings.url}") from None


def _ask(url: str, token: str) -> views.Status:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(f"{url}/status", headers={"Authorization": f"Bearer {token}"})  # noqa: S310  its own
    # The server is on this machine, where no proxy leads.
    open_directly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        with open_directly(request, timeout=_SECONDS) as answer:
            return msgspec.json.decode(answer.read(), type=views.Status)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                raise Unauthorized(f"the server at {url} does not know the token of this data") from None
            raise _not_running(f"the server at {url} answered with status {error.code}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise _not_running(f"no `postroad up` answers at {url}: {getattr(error, 'reason', error)}") from error


def _not_running(message: str) -> Unavailable:
    return Unavailable(message, remedy="Start it with `postroad up`, or name its data with --url.")


@verb("demo", "--once --json", until_stopped=True)
def demo(
    call: Call,
    action: Annotated[Literal["repair"] | None, argument("repair", "Repair the push provider of a demo.")] = None,
    once: Annotated[bool, flag("--once", "Play the whole story unattended, and check it.")] = False,
    seconds: Annotated[float | None, duration_option("With --once, how long there is traffic (20s).")] = None,
    port: Port = None,
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
        call.settings()
        with up_demo_story.open_story(call.url or up_demo_story.DEMO_URL) as story:
            story.repair()
            failure = story.failure()
        waiting = f"; {counted(failure.dead_letters, 'dead letter')} can be redriven" if failure.dead_letters else ""
        call.show(failure, f"the push provider is {_SAID[failure.state]}{waiting}")
    elif once:
        signals.release()
        _once(call, 20.0 if seconds is None else seconds)
    else:
        with tempfile.TemporaryDirectory(prefix="postroad-demo-") as folder:
            url = call.url or f"sqlite:///{Path(folder) / 'postroad-demo.db'}"
            settings = replace(_settings(call, port=port), url=url)
            told = not call.json
            code = up_command.run_up(settings, json_output=call.json, open_browser=True, demo=True, narrated=told)
        raise typer.Exit(code)


def _settings(call: Call, **flags: Any) -> Settings:
    """Return the settings, with few log lines unless more are asked for."""
    settings = call.settings(**flags)
    return replace(settings, log_level="error") if settings.source("log_level") == "default" else settings


def _once(call: Call, seconds: float) -> None:
    settings = _settings(call)
    configure_logs(settings.log_level, settings.log_format, color=call.color)
    with signals.ended_by_sigterm():
        played = up_demo_once.play_once(settings, seconds, lambda text: None if call.json else write(text, sys.stderr))
    call.show(
        played,
        f"{played.published:,} published, {played.handled:,} handled in {played.seconds:g} s",
        f"{counted(played.dead_lettered, 'dead letter')}, {played.redriven:,} redriven",
        f"{played.lost:,} lost, {played.duplicated_effects:,} effects made twice, ledger sum {played.ledger_sum}",
        ok=played.ok,
    )
