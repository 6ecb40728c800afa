"""`postroad queue create|delete|list|show|purge|peek|send|groups|watch`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, verb
from postroad.cli.display import group_table, held, message_blocks, queue_card, queue_table
from postroad.cli.output import confirm_name, live_console, write
from postroad.cli.parameters import duration, duration_option, pairs, queue_names, short_duration
from postroad.errors import InvalidInput, PostroadError
from postroad.signals import interrupted_by_sigterm, stopped_by_signals
from postroad.telemetry import counted, recorded

if TYPE_CHECKING:
    from postroad.queues import QueueOverview
    from postroad.views import QueueLook
    from postroad.wiring import Backend


QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", autocompletion=queue_names)]
Confirm = Annotated[str | None, typer.Option(metavar="NAME", help="The queue's name again, to skip the question.")]


@verb("queue create", "orders --visibility 2m --dead-letter orders-dlq")
def create(
    call: Call,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="1 to 80 letters, digits, '-', '_'; a FIFO queue ends in .fifo.")
    ],
    fifo: Annotated[bool, typer.Option("--fifo", help="Keep the order within each group.")] = False,
    visibility: Annotated[float | None, duration_option("How long a received message is hidden (30s).")] = None,
    dead_letter: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="The queue for messages that fail.", autocompletion=queue_names)
    ] = None,
    max_receives: Annotated[
        int | None, typer.Option(metavar="N", help="Receives before a message becomes a dead letter (3).")
    ] = None,
) -> None:
    """Create a queue; one that exists with the same settings stays as it is."""
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


@verb("queue delete", "orders --confirm orders", destructive=True)
def delete(call: Call, name: QueueName, confirm: Confirm = None) -> None:
    """Delete a queue with all its messages."""
    from postroad.views import overview

    with call.backend() as backend:
        row = overview(backend, name)
        confirm_name(name, confirm, f'removes queue "{name}" with {_held(row)}')
        backend.delete_queue(name)
    call.show({"deleted": name}, f"deleted {name}")


@verb("queue list", "--prefix orders")
def list_(
    call: Call, prefix: Annotated[str, typer.Option(metavar="P", help="Only names that begin with this.")] = ""
) -> None:
    """List the queues and how many messages they hold."""
    from postroad.views import Listed, queue_row

    with call.backend() as backend:
        names = [name for name in backend.queues() if name.startswith(prefix)]
        rows = [queue_row(found) for found in backend.overviews(names)]
        dead = {row.dead_letter for row in rows}
        if prefix and not call.json:
            # Queues that are not listed may send their dead letters to one that is.
            dead |= {row.name for row in rows if held(row) and _takes_dead_letters(backend, row.name)}
    call.show(Listed(rows), queue_table(rows, dead))


def _takes_dead_letters(backend: Backend, name: str) -> bool:
    # Whoever may only look at a queue itself sees it without its colour.
    with suppress(PostroadError):
        return bool(backend.sources(name))
    return False


@verb("queue show", "orders")
def show(call: Call, name: QueueName) -> None:
    """Show one queue: how many messages it holds, its settings, and whose dead letters it receives."""
    from postroad.views import queue_detail

    with call.backend() as backend:
        document = queue_detail(backend, name)
    call.show(document, *queue_card(document))


@verb("queue purge", 'orders --confirm orders --reason "test data"', destructive=True)
def purge(
    call: Call,
    name: QueueName,
    confirm: Confirm = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; required.")] = "",
    archive: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every message there first, as JSON lines.")
    ] = None,
) -> None:
    """Delete all messages of a queue, leased ones included."""
    from postroad.operations import purge as remove_all
    from postroad.views import Purged, overview

    if not reason.strip():
        raise InvalidInput("reason: is empty", field="reason", remedy="Say why with --reason; nothing was changed.")
    with call.backend() as backend:
        confirm_name(name, confirm, f'removes {_held(overview(backend, name))} from queue "{name}"')
        with call.working(f"purging {name}"), interrupted_by_sigterm():
            purged = remove_all(backend, name, confirm=name, reason=reason, archive=archive)
    call.show(Purged(purged), f"purged {counted(purged, 'message')} from {name}")


def _held(found: QueueOverview) -> str:
    return counted(found.stats.visible + found.stats.in_flight + found.stats.delayed, "message")


@verb("queue peek", "orders-dlq --limit 3 --body")
def peek(
    call: Call,
    name: QueueName,
    limit: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="At most this many.")] = 10,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Start after this message.")] = None,
    body: Annotated[bool, typer.Option("--body", help="Show the bodies too.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="On SQS: show messages even if that counts as a receive.")
    ] = False,
) -> None:
    """Show messages without receiving them."""
    from postroad.views import Page, open_queue, peeked

    with call.backend() as backend:
        queue = open_queue(backend, name)
        # Where this counts as a receive, it is a change.
        with recorded(
            backend.audit_log() if force else None, "queue.peek", name, {"limit": limit, "body": body}
        ) as done:
            found = queue.peek(limit=limit, after=after, force=force)
            done["seen"] = len(found)
        now = backend.clock.now()
    if not queue.traits.peeks_clean:
        write("note: this is a sample; the queue may hold more, and peeking counts as a receive", sys.stderr)
    items = [peeked(message, body=body) for message in found]
    cursor = found[-1].message_id if len(found) == limit else None
    call.show(Page(items, cursor), *message_blocks(items, now))


@verb("queue send", """orders --body '{"id": 7}' --attr EventType=orders.placed""")
def send(
    call: Call,
    name: QueueName,
    body: Annotated[str, typer.Option(metavar="TEXT|-", help="The body; - reads it from stdin.")],
    attr: Annotated[list[str] | None, typer.Option(metavar="K=V", help="An attribute; repeatable.")] = None,
    group: Annotated[str | None, typer.Option(metavar="G", help="The group; the order within it is kept.")] = None,
    dedup_id: Annotated[str | None, typer.Option(metavar="D", help="The id that identifies a repeat (FIFO).")] = None,
    delay: Annotated[float | None, duration_option("Hide it for this long first.")] = None,
) -> None:
    """Send one message and print its id."""
    from postroad.queues import OutgoingMessage
    from postroad.views import open_queue

    content = sys.stdin.buffer.read() if body == "-" else body
    message = OutgoingMessage(content, pairs(attr or [], "attr", "K=V"), group, dedup_id, delay or 0)
    with call.backend() as backend:
        queue = open_queue(backend, name)
        with recorded(backend.audit_log(), "queue.send", name, {"length": len(content), "group": group}) as done:
            [result] = queue.send([message])
            if result.error is not None:
                raise result.error
            done["message_id"] = result.message_id
    call.show({"message_id": result.message_id}, str(result.message_id))


@verb("queue groups", "orders-dlq")
def groups(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="DLQ", help="The dead-letter queue.", autocompletion=queue_names)],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Examine at most this many messages.")] = None,
) -> None:
    """Group dead letters by cause."""
    from postroad.operations import failure_groups
    from postroad.views import failure_groups_page, open_queue

    with call.backend() as backend:
        open_queue(backend, name)
        with call.working(f"looking at {name}"):
            document = failure_groups_page(failure_groups(backend, name, limit=limit))
    if not document.complete:
        write(f"note: examined {counted(document.scanned, 'message')}; the queue may hold more", sys.stderr)
    call.show(document, group_table(document.items))


def pause(text: str) -> float:
    """Return a duration above zero."""
    seconds = duration(text)
    if seconds <= 0:
        raise typer.BadParameter(f'"{text}" is not above 0')
    return seconds


@verb("queue watch", "orders orders-dlq --interval 5s", until_stopped=True)
def watch(
    call: Call,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The queues.", autocompletion=queue_names)],
    interval: Annotated[
        float | None, typer.Option(parser=pause, metavar="DURATION", help="Time between two lines (1s).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after this many rounds.")] = None,
) -> None:
    """Show how many messages queues hold, as it changes, until Ctrl-C."""
    from postroad.views import overview, queue_look

    with stopped_by_signals() as stop, call.backend() as backend, _watched(call, backend, names) as show:
        looks = 0
        while not stop.is_set():
            show([queue_look(overview(backend, name), backend.clock.now()) for name in names])
            looks += 1
            if looks == count:
                break
            stop.wait(interval or 1.0)


@contextmanager
def _watched(call: Call, backend: Backend, names: list[str]) -> Iterator[Callable[[list[QueueLook]], None]]:
    """Yield a function that shows queues: in a table that is drawn anew on a terminal, in lines elsewhere."""
    page = None if call.json else live_console(sys.stdout, color=call.color)
    if page is None:

        def tell(rows: list[QueueLook]) -> None:
            for row in rows:
                numbers = f"{row.visible:,} visible, {row.in_flight:,} in flight, {row.delayed:,} delayed"
                age = short_duration(row.oldest_age_seconds)
                call.show(row, f"{row.at:%H:%M:%S}  {row.name}  {numbers}, oldest {age}")

        yield tell
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    dead = {name for name in names if _takes_dead_letters(backend, name)}
    with Live(console=page, auto_refresh=False) as live:

        def draw(rows: list[QueueLook]) -> None:
            at = Text(f"{rows[-1].at:%H:%M:%S}, until Ctrl-C", "dim")
            live.update(Group(queue_table(rows, dead), at), refresh=True)

        yield draw
