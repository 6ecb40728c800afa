"""`postroad queue watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.completion import queue_names
from postroad.cli.durations import duration, spoken
from postroad.cli.output import write, write_json
from postroad.cli.verbs import add_verb
from postroad.signals import stopped_by_signals

if TYPE_CHECKING:
    from postroad.views import QueueLook
    from postroad.wiring import Backend

_INTERVAL = 1.0


def add_to(app: typer.Typer) -> None:
    """Make the verb part of `postroad queue`."""
    add_verb(app, "watch", watch, example="postroad queue watch orders orders-dlq --interval 5s", until_stopped=True)


def pause(text: str) -> float:
    """A duration above zero."""
    seconds = duration(text)
    if seconds <= 0:
        raise typer.BadParameter(f'"{text}" is no time at all')
    return seconds


def watch(
    call: Call,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The queues.", autocompletion=queue_names)
    ],
    interval: Annotated[
        float | None, typer.Option(parser=pause, metavar="DURATION", help="How long from one look to the next (1s).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Look so many times, then end.")] = None,
) -> None:  # fmt: skip
    """Show what queues hold, again and again, until Ctrl-C."""
    with stopped_by_signals() as stop, call.backend() as backend:
        looks = 0
        while not stop.is_set():
            for name in names:
                _show(call, _look(backend, name))
            looks += 1
            if looks == count:
                break
            stop.wait(interval or _INTERVAL)


def _look(backend: Backend, name: str) -> QueueLook:
    from postroad.views import overview, queue_look

    return queue_look(overview(backend, name), backend.clock.now())


def _show(call: Call, row: QueueLook) -> None:
    if call.json:
        write_json(row)
        return
    numbers = f"{row.visible:,} visible, {row.in_flight:,} in flight, {row.delayed:,} delayed"
    write(f"{row.at:%H:%M:%S}  {row.name}  {numbers}, oldest {spoken(row.oldest_age_seconds)}")
