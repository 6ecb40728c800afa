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
    cost,
    doctor,
    inbox,
    jobs,
    journal,
    notifications,
    outbox,
    outbox_repairs,
    outbox_run,
    queues,
    redrive,
    tasks,
    topology,
    worker,
)
from postroad.cli.call import noun, remember_shared_options
from postroad.cli.output import prepare_streams, report

_TOP = (worker.add_to, about.add_to, journal.add_why_to, doctor.add_to, cost.add_to)
_NOUNS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "queue": (
        "Make, see, empty and redrive queues.",
        "postroad queue list",
        (queues.add_to, redrive.add_to),
    ),
    "bus": ("Publish, watch and replay events.", "postroad bus tail orders", (bus.add_to, bus_groups.add_to)),
    "outbox": (
        "Publish what applications record in their databases, and repair what fails.",
        "postroad outbox status",
        (outbox.add_to, outbox_run.add_to, outbox_repairs.add_to),
    ),
    "inbox": (
        "Make, prune and settle the inbox of an application's database.",
        "postroad inbox unknown",
        (inbox.add_to,),
    ),
    "task": ("Submit tasks, and see, retry and cancel them.", "postroad task submit scrape-store", (tasks.add_to,)),
    "job": ("Submit graphs of tasks, and see, resume and cancel them.", "postroad job list", (jobs.add_to,)),
    "journal": (
        "Make, read, verify and prune the journal of tasks and jobs.",
        "postroad journal query",
        (journal.add_to,),
    ),
    "agent": (
        "Make agents, connect them, and see what waits for them.",
        "postroad agent create ann",
        (agents.add_to, agent_events.add_to),
    ),
    "notifications": (
        "Store what offline users missed, and push it to their devices.",
        "postroad notifications worker",
        (notifications.add_to,),
    ),
    "topology": (
        "Plan, apply and render everything a deployment needs.",
        "postroad topology plan transfers",
        (topology.add_to,),
    ),
    "plan": ("Estimate what a deployment needs and costs.", "postroad plan agents", (cost.add_plan_to,)),
    "token": ("Make, list and revoke tokens of the HTTP API.", "postroad token list", (audit.add_tokens_to,)),
    "audit": ("See who changed what.", "postroad audit verify", (audit.add_to,)),
    "config": ("See and check the settings.", "postroad config show", (about.add_config_to,)),
}


@functools.cache
def program() -> Any:
    """The whole command tree, built once."""
    app = noun("Typed events that arrive, on an embedded SQLite file or on AWS.", example="postroad up")
    app.callback()(remember_shared_options)
    for add_to in _TOP:
        add_to(app)
    for name, (summary, example, verbs) in _NOUNS.items():
        place = noun(summary, example=example)
        for add_to in verbs:
            add_to(place)
        app.add_typer(place, name=name)
    return get_command(app)


def run(args: Sequence[str]) -> int:
    """Do what the arguments say and return the exit code; errors are told, never raised."""
    prepare_streams()
    try:
        return int(program().main(args=list(args), prog_name="postroad", standalone_mode=False) or 0)
    except Exception as error:
        return report(error, as_json="--json" in args)
