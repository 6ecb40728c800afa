"""The program `postroad`: its nouns and verbs, put together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from typer.main import get_command

from postroad.cli import (
    about,
    agent_events,
    agents,
    audit,
    bus,
    bus_groups,
    compaction,
    configuration,
    cost,
    doctor,
    grouping,
    health,
    inbox,
    jobs,
    journal,
    messages,
    notifications,
    outbox,
    outbox_rendering,
    outbox_repairing,
    outbox_run,
    plan,
    queues,
    redriving,
    tasks,
    tokens,
    topology,
    up,
    watching,
    why,
    worker,
)
from postroad.cli.errors import report
from postroad.cli.output import prepare_streams
from postroad.cli.verbs import noun, remember_shared_options

_TOP = (up, about, worker, health, why, doctor, compaction, cost)
_NOUNS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "queue": (
        "Make, see, empty and redrive queues.",
        "postroad queue list",
        (queues, messages, grouping, redriving, watching),
    ),
    "bus": ("Publish, watch and replay events.", "postroad bus tail orders", (bus, bus_groups)),
    "outbox": (
        "Publish what applications record in their databases, and repair what fails.",
        "postroad outbox status",
        (outbox, outbox_run, outbox_repairing, outbox_rendering),
    ),
    "inbox": (
        "Make, prune and settle the inbox of an application's database.",
        "postroad inbox unknown",
        (inbox,),
    ),
    "task": ("Submit tasks, and see, retry and cancel them.", "postroad task submit scrape-store", (tasks,)),
    "job": ("Submit graphs of tasks, and see, resume and cancel them.", "postroad job list", (jobs,)),
    "journal": ("Make, read, verify and prune the journal of tasks and jobs.", "postroad journal query", (journal,)),
    "agent": (
        "Make agents, connect them, and see what waits for them.",
        "postroad agent create ann",
        (agents, agent_events),
    ),
    "notifications": (
        "Store what offline users missed, and push it to their devices.",
        "postroad notifications worker",
        (notifications,),
    ),
    "topology": (
        "Plan, apply and render everything a deployment needs.",
        "postroad topology plan transfers",
        (topology,),
    ),
    "plan": ("Reckon what a deployment needs and costs.", "postroad plan agents", (plan,)),
    "token": ("Make, list and revoke tokens of the HTTP API.", "postroad token list", (tokens,)),
    "audit": ("See who changed what.", "postroad audit verify", (audit,)),
    "config": ("See and check the settings.", "postroad config show", (configuration,)),
}


@functools.cache
def program() -> Any:
    """The whole command tree, built once."""
    app = noun("Typed events that arrive, on an embedded SQLite file or on AWS.", example="postroad up")
    app.callback()(remember_shared_options)
    for module in _TOP:
        module.add_to(app)
    for name, (summary, example, modules) in _NOUNS.items():
        place = noun(summary, example=example)
        for module in modules:
            module.add_to(place)
        app.add_typer(place, name=name)
    return get_command(app)


def run(args: Sequence[str]) -> int:
    """Do what the arguments say and return the exit code; errors are told, never raised."""
    prepare_streams()
    try:
        return int(program().main(args=list(args), prog_name="postroad", standalone_mode=False) or 0)
    except Exception as error:
        return report(error, as_json="--json" in args)
