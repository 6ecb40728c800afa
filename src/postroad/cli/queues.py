"""`postroad queue create|delete|list|show|purge|peek|send|groups|watch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import confirm_name, write, write_json
from postroad.cli.parameters import duration, queue_names, spoken
from postroad.errors import InvalidInput
from postroad.signals import interrupted_by_sigterm, stopped_by_signals

if TYPE_CHECKING:
    from postroad.queues import QueueOverview
    from postroad.views import QueueLook
    from postroad.wiring import Backend


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
    add_verb(app, "peek", peek, example="postroad queue peek orders-dlq --limit 3 --body")
    add_verb(
        app, "send", send, example="""postroad queue send orders --body '{"id": 7}' --attr EventType=orders.placed"""
    )
    add_verb(app, "groups", groups, example="postroad queue groups orders-dlq")
    add_verb(app, "watch", watch, example="postroad queue watch orders orders-dlq --interval 5s", until_stopped=True)


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


_ATTRIBUTE_FORM = "K=V"


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
    from postroad.telemetry import recorded
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
    from postroad.queues import OutgoingMessage
    from postroad.telemetry import recorded
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


_INTERVAL = 1.0


def pause(text: str) -> float:
    """A duration above zero."""
    seconds = duration(text)
    if seconds <= 0:
        raise typer.BadParameter(f'"{text}" is no time at all')
    return seconds


def watch(
    call: Call,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The queues.", autocompletion=queue_names)],
    interval: Annotated[
        float | None, typer.Option(parser=pause, metavar="DURATION", help="How long from one look to the next (1s).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Look so many times, then end.")] = None,
) -> None:
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
