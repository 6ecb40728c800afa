"""`postroad queue peek|send`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from postroad.cli.call import Call
from postroad.cli.durations import duration
from postroad.cli.output import write
from postroad.cli.queues import QueueName
from postroad.cli.verbs import add_verb
from postroad.errors import InvalidInput

_ATTRIBUTE_FORM = "K=V"


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad queue`."""
    add_verb(app, "peek", peek, example="postroad queue peek orders-dlq --limit 3 --body")
    add_verb(
        app, "send", send, example="""postroad queue send orders --body '{"id": 7}' --attr EventType=orders.placed"""
    )


def attributes(pairs: list[str]) -> dict[str, str]:
    """The attributes given as `K=V`."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f'attr: "{pair}" is not {_ATTRIBUTE_FORM}', field="attr")
        found[name] = value
    return found


def peek(
    call: Call,
    name: QueueName,
    limit: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="How many at most.")] = 10,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin behind this message.")] = None,
    body: Annotated[bool, typer.Option("--body", help="Show the bodies too.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="On SQS: look even where looking counts as a receive.")
    ] = False,
) -> None:
    """Look at messages without touching them."""
    from postroad.cli.tables import message_blocks
    from postroad.operations.recording import recorded
    from postroad.views import PeekedPage, open_queue, peeked

    with call.backend() as backend:
        queue = open_queue(backend, name)
        # Where a look counts as a receive, forcing it is a change.
        with recorded(
            backend.audit_log() if force else None, "queue.peek", name, {"limit": limit, "body": body}
        ) as done:
            found = queue.peek(limit=limit, after=after, force=force)
            done["seen"] = len(found)
        now = backend.clock.now()
    if not queue.traits.peeks_clean:
        write("note: this is a sample; the queue may hold more, and looking counts as a receive", sys.stderr)
    items = [peeked(message, body=body) for message in found]
    cursor = found[-1].message_id if len(found) == limit else None
    call.show(PeekedPage(items, cursor), *message_blocks(items, now))


def send(
    call: Call,
    name: QueueName,
    body: Annotated[str, typer.Option(metavar="TEXT|-", help="The body; - reads it from stdin.")],
    attr: Annotated[list[str] | None, typer.Option(metavar=_ATTRIBUTE_FORM, help="An attribute; repeatable.")] = None,
    group: Annotated[str | None, typer.Option(metavar="G", help="The group whose order is kept.")] = None,
    dedup_id: Annotated[str | None, typer.Option(metavar="D", help="Recognises a repeat (FIFO).")] = None,
    delay: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Hide it this long first.")
    ] = None,
) -> None:
    """Send one message and print its id."""
    from postroad.operations.recording import recorded
    from postroad.queues import OutgoingMessage
    from postroad.views import open_queue

    content = sys.stdin.buffer.read() if body == "-" else body
    message = OutgoingMessage(content, attributes(attr or []), group, dedup_id, delay or 0)
    with call.backend() as backend:
        queue = open_queue(backend, name)
        with recorded(backend.audit_log(), "queue.send", name, {"length": len(content), "group": group}) as done:
            [result] = queue.send([message])
            if result.error is not None:
                raise result.error
            done["message_id"] = result.message_id
    call.show({"message_id": result.message_id}, str(result.message_id))
