"""The program `postroad`: its nouns and verbs, and the verbs `version`, `commands` and `config`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any, Final

from typer.main import get_command

from postroad import __version__, failpoints
from postroad.cli.call import Call, Verb, add_verb, noun, remember_shared_options, verb
from postroad.cli.display import table
from postroad.cli.output import prepare_streams, report, write
from postroad.cli.packages import bus, bus_aws, rich_text
from postroad.errors import InvalidInput
from postroad.settings import bus_variable, nearest
from postroad.telemetry import counted

_TOP_LEVEL = ("service", "worker", "app", "journal", "doctor", "cost")
"""The modules with verbs that have no noun."""
_NOUNS = {
    "queue": ("Create, inspect, empty and redrive queues.", "list", ("queues",)),
    "bus": ("Publish, handle, watch and replay events.", "tail orders", ("bus",)),
    "bus group": ("Show and change which types the groups of a topic receive.", "list orders", ("bus",)),
    "outbox": (
        "Publish what applications record in their databases, and repair what fails.",
        "status",
        ("outbox", "outbox_run"),
    ),
    "inbox": ("Create, prune and settle the inbox of an application's database.", "unknown", ("inbox",)),
    "task": ("Submit, list, show, retry and cancel tasks.", "submit scrape-store", ("tasks",)),
    "schedule": ("List, pause, resume and run the schedules of tasks.", "list", ("jobs",)),
    "job": ("Submit, show, resume and cancel graphs of tasks.", "list", ("jobs",)),
    "journal": ("Create, read, verify and prune the journal of tasks and jobs.", "query", ("journal",)),
    "agent": ("Create agents, connect them, and show what waits for them.", "create ann", ("agents",)),
    "notifications": ("Store what offline users missed, and push it to their devices.", "worker", ("notifications",)),
    "topology": ("Plan, apply and render everything a deployment needs.", "plan transfers", ("topology",)),
    "plan": ("Estimate what a deployment needs and costs.", "agents", ("cost",)),
    "token": ("Create, list and revoke tokens of the HTTP API.", "list", ("audit",)),
    "audit": ("Show who changed what.", "verify", ("audit",)),
    "verify": (
        "Break a running system on purpose, and count what was lost, doubled or reordered.",
        "--scenario queue",
        ("verify",),
    ),
    "config": ("Show and check the settings.", "show", ("app",)),
}
"""What each noun is for, an example, and the modules with its verbs, which are imported if the noun is used."""
_SHELLS: Final = ("bash", "zsh", "fish")


@functools.cache
def program(nouns: frozenset[str] | None = None) -> Any:
    """Build the command tree, once; of `nouns` alone with their verbs, if they are given, as that is quicker."""
    app = noun("Typed events that arrive, on an embedded SQLite file or on AWS.", example="postroad up")
    app.callback()(remember_shared_options)
    places = {
        name: noun(summary, example=f"postroad {name} {rest}", default="run" if name == "verify" else None)
        for name, (summary, rest, _) in _NOUNS.items()
    }
    places[""] = app
    wanted = [name for name in _NOUNS if nouns is None or name.partition(" ")[0] in nouns]
    for module in dict.fromkeys((*_TOP_LEVEL, *(module for name in wanted for module in _NOUNS[name][2]))):
        for function in vars(import_module(f"postroad.cli.{module}")).values():
            if isinstance(function, FunctionType) and isinstance(getattr(function, "verb", None), Verb):
                place = function.verb.path.rpartition(" ")[0]  # type: ignore[attr-defined]  # checked just before
                if not place or place in wanted:
                    add_verb(places[place], function)
    for name in _NOUNS:
        parent, _, last = name.rpartition(" ")
        places[parent].add_typer(places[name], name=last)
    return get_command(app)


def run(args: Sequence[str]) -> int:
    """Run the command that the arguments name and return its exit code; errors are printed, never raised."""
    prepare_streams()
    # The help is printed before the options are read.
    color = False if "--no-color" in args else None
    try:
        if _completed_for_shell(args):
            return 0
        # A shell that completes gives no arguments: its words are in the environment.
        named = program(frozenset(_NOUNS).intersection(args) if args else None)
        return int(named.main(args=list(args), prog_name="postroad", standalone_mode=False, color=color) or 0)
    except Exception as error:
        return report(error, as_json="--json" in args)


def _completed_for_shell(args: Sequence[str]) -> bool:
    """Carry out an option about completion that names its shell, and return whether there was one.

    Without a name, typer finds the running shell.
    """
    option, _, shell = " ".join(args[:2]).replace("=", " ").partition(" ")
    if option not in ("--install-completion", "--show-completion") or not shell:
        return False
    if shell not in _SHELLS:
        raise InvalidInput(
            f'"{shell}" is not a shell that Postroad completes for',
            field="shell",
            nearest=nearest(shell, _SHELLS),
            remedy=f"Name one of {', '.join(_SHELLS)}.",
        )
    from typer._completion_shared import get_completion_script, install

    named = {"prog_name": "postroad", "complete_var": "_POSTROAD_COMPLETE", "shell": shell}
    if option == "--show-completion":
        write(get_completion_script(**named))
    else:
        _, path = install(**named)
        write(f"completion for {shell} is in {path}; it takes effect in the next shell")
    return True


@verb("version", "--json")
def version(call: Call) -> None:
    """Print the version."""
    call.show({"version": __version__}, f"postroad {__version__}")


@verb("commands", "--json")
def commands(call: Call) -> None:
    """List all commands."""
    items = list(_leaves(program(), ""))
    rows = (
        [
            rich_text.Text(i["command"], "bold"),
            rich_text.Text("asks first" if i["destructive"] else "", "yellow"),
            i["summary"],
        ]
        for i in items
    )
    call.show({"items": items}, table(["COMMAND", "", "SUMMARY"], rows))


def _leaves(command: Any, path: str) -> Iterator[dict[str, Any]]:
    nested = getattr(command, "commands", None)
    if nested is None:
        summary = (command.help or "").strip().split("\n", 1)[0]
        yield {"command": path, "summary": summary, "destructive": command.callback.verb.destructive}
        return
    for name, each in nested.items():
        yield from _leaves(each, f"{path} {name}".strip())


@verb("config show", "--json")
def show_config(call: Call) -> None:
    """Show every setting with its value and where it comes from; secrets are hidden."""
    items = call.settings().items()
    rows = (
        [
            rich_text.Text(item["key"], "bold"),
            _shown(item["value"]),
            rich_text.Text(item["source"], "" if item["source"] == "default" else "green"),
        ]
        for item in items
    )
    shown = table(["KEY", "VALUE", "SOURCE"], rows)
    call.show({"items": items}, shown, "", "A variable sets each of them: POSTROAD_PORT sets port.")


def _shown(value: Any) -> Any:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, list) else value


@verb("config check", "--config staging.toml")
def check_config(call: Call) -> None:
    """Check flags, environment and file without starting anything."""
    settings = call.settings()
    failpoints.load(settings.failpoints)
    bus.BusConfig.from_env()
    if bus_variable("QUEUE_URL") is not None:
        bus_aws.checked_url(None)
    items = settings.items()
    given = sum(item["source"] != "default" for item in items)
    call.show({"ok": True}, f"ok: {given} of {counted(len(items), 'setting')} given, the others have their defaults")
