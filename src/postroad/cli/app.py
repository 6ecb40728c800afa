"""The program `postroad`: its nouns and verbs, put together."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from typer.main import get_command

from postroad.cli import (
    about,
    agent_events,
    agents,
    audit,
    bus,
    configuration,
    inbox,
    journal,
    messages,
    plan,
    queues,
    redriving,
    tasks,
    topology,
    up,
    worker,
)
from postroad.cli.errors import report
from postroad.cli.output import prepare_streams
from postroad.cli.verbs import noun, remember_shared_options


@functools.cache
def program() -> Any:
    """The whole command tree, built once."""
    app = noun("Typed events that arrive, on an embedded SQLite file or on AWS.", example="postroad up")
    app.callback()(remember_shared_options)
    queue = noun("Make, see, empty and redrive queues.", example="postroad queue list")
    events = noun("Publish, watch and replay events.", example="postroad bus tail orders")
    config = noun("See and check the settings.", example="postroad config show")
    layout = noun("Plan, apply and render everything a deployment needs.", example="postroad topology plan transfers")
    records = noun("See who changed what.", example="postroad audit verify")
    parts = {app: (up, about, worker), queue: (queues, messages, redriving), events: (bus,), config: (configuration,)}
    parts |= {layout: (topology,), records: (audit,)}
    history = noun("Make, read and verify the journal of tasks and jobs.", example="postroad journal query")
    parts[history] = (journal,)
    work = noun("Submit tasks, and see, retry and cancel them.", example="postroad task submit scrape-store")
    parts[work] = (tasks,)
    handled = noun("Make, prune and settle the inbox of an application's database.", example="postroad inbox unknown")
    parts[handled] = (inbox,)
    village = noun("Make agents, connect them, and see what waits for them.", example="postroad agent create ann")
    parts[village] = (agents, agent_events)
    plans = noun("Reckon what a deployment needs and costs.", example="postroad plan agents")
    parts[plans] = (plan,)
    for place, modules in parts.items():
        for module in modules:
            module.add_to(place)
    app.add_typer(village, name="agent")
    app.add_typer(plans, name="plan")
    app.add_typer(queue, name="queue")
    app.add_typer(events, name="bus")
    app.add_typer(config, name="config")
    app.add_typer(handled, name="inbox")
    app.add_typer(layout, name="topology")
    app.add_typer(records, name="audit")
    app.add_typer(history, name="journal")
    app.add_typer(work, name="task")
    return get_command(app)


def run(args: Sequence[str]) -> int:
    """Do what the arguments say and return the exit code; errors are told, never raised."""
    prepare_streams()
    try:
        return int(program().main(args=list(args), prog_name="postroad", standalone_mode=False) or 0)
    except Exception as error:
        return report(error, as_json="--json" in args)


def main() -> None:
    """The entry point of the command `postroad`."""
    sys.exit(run(sys.argv[1:]))
