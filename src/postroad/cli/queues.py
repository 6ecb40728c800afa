"""`postroad queue create|delete|list|show|purge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call
from postroad.cli.completion import queue_names
from postroad.cli.confirming import confirm_name
from postroad.cli.durations import duration
from postroad.cli.verbs import add_verb
from postroad.errors import InvalidInput
from postroad.signals import interrupted_by_sigterm

if TYPE_CHECKING:
    from postroad.queues import QueueOverview

QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", autocompletion=queue_names)]
Confirm = Annotated[str | None, typer.Option(metavar="NAME", help="The queue's name again, instead of the question.")]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad queue`."""
    add_verb(app, "create", create, example="postroad queue create orders --visibility 2m --dead-letter orders-dlq")
    add_verb(app, "list", list_, example="postroad queue list --prefix orders")
    add_verb(app, "show", show, example="postroad queue show orders")
    add_verb(app, "delete", delete, example="postroad queue delete orders --confirm orders", destructive=True)
    add_verb(
        app,
        "purge",
        purge,
        example='postroad queue purge orders --confirm orders --reason "test data"',
        destructive=True,
    )


def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 80 letters, digits, '-', '_'; FIFO ends in .fifo.")],
    fifo: Annotated[bool, typer.Option("--fifo", help="Keep the order within each group.")] = False,
    visibility: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long a received message hides (30s).")
    ] = None,
    dead_letter: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Where messages rest that failed.", autocompletion=queue_names)
    ] = None,
    max_receives: Annotated[
        int | None, typer.Option(metavar="N", help="Receives before a message becomes a dead letter (3).")
    ] = None,
) -> None:
    """Make a queue. One that exists with the same settings stays as it is."""
    from postroad.cli.tables import queue_card
    from postroad.queues import QueueSpec
    from postroad.views import open_queue, queue_detail

    given: dict[str, Any] = {"visibility": visibility, "dead_letter": dead_letter, "max_receives": max_receives}
    spec = QueueSpec(name, fifo=fifo, **{key: value for key, value in given.items() if value is not None})
    with call.backend() as backend:
        if dead_letter is not None:
            open_queue(backend, dead_letter)
        backend.create_queue(spec)
        document = queue_detail(backend, name)
    call.show(document, *queue_card(document))


def delete(call: Call, name: QueueName, confirm: Confirm = None) -> None:
    """Remove a queue with everything in it."""
    from postroad.views import overview

    with call.backend() as backend:
        row = overview(backend, name)
        confirm_name(name, confirm, f'removes queue "{name}" with {_held(row)}')
        backend.delete_queue(name)
    call.show({"deleted": name}, f"deleted {name}")


def list_(
    call: Call, prefix: Annotated[str, typer.Option(metavar="P", help="Only names that begin like this.")] = ""
) -> None:
    """List the queues with what they hold."""
    from postroad.cli.tables import queue_table
    from postroad.views import QueuePage, queue_row

    with call.backend() as backend:
        names = [name for name in backend.queues() if name.startswith(prefix)]
        rows = [queue_row(found) for found in backend.overviews(names)]
    call.show(QueuePage(rows), queue_table(rows))


def show(call: Call, name: QueueName) -> None:
    """Show one queue: what it holds, its settings, and whose dead letters it takes."""
    from postroad.cli.tables import queue_card
    from postroad.views import queue_detail

    with call.backend() as backend:
        document = queue_detail(backend, name)
    call.show(document, *queue_card(document))


def purge(
    call: Call,
    name: QueueName,
    confirm: Confirm = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; required.")] = "",
    archive: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every message there first, as JSON lines.")
    ] = None,
) -> None:
    """Remove every message of a queue, leased ones included."""
    from postroad.operations import purge as remove_all
    from postroad.views import Purged, overview

    if not reason.strip():
        raise InvalidInput("reason: is empty", field="reason", remedy="Say why with --reason; nothing was changed.")
    with call.backend() as backend:
        confirm_name(name, confirm, f'removes {_held(overview(backend, name))} from queue "{name}"')
        with interrupted_by_sigterm():
            purged = remove_all(backend, name, confirm=name, reason=reason, archive=archive)
    call.show(Purged(purged), f"purged {purged:,} from {name}")


def _held(found: QueueOverview) -> str:
    count = found.stats.visible + found.stats.in_flight + found.stats.delayed
    return "1 message" if count == 1 else f"{count:,} messages"
