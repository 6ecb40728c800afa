"""`postroad queue groups`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.completion import queue_names
from postroad.cli.output import write
from postroad.cli.verbs import add_verb


def add_to(app: typer.Typer) -> None:
    """Make the verb part of `postroad queue`."""
    add_verb(app, "groups", groups, example="postroad queue groups orders-dlq")


def groups(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="DLQ", help="The dead-letter queue.", autocompletion=queue_names)],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Look at so many messages at most.")] = None,
) -> None:
    """Group dead letters by what they died of."""
    from postroad.cli.tables import group_table
    from postroad.operations import failure_groups
    from postroad.views import failure_groups_page, open_queue

    with call.backend() as backend:
        open_queue(backend, name)
        document = failure_groups_page(failure_groups(backend, name, limit=limit))
    if not document.complete:
        write(f"note: {document.scanned:,} messages were looked at; the queue may hold more", sys.stderr)
    call.show(document, group_table(document.items))
