"""`postroad queue`: create, inspect, empty and redrive queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from postroad.cli.call import Call, verb
from postroad.cli.display import group_table, held, message_blocks, more, queue_card, queue_table
from postroad.cli.output import confirm_name, confirm_yes, live_console, write
from postroad.cli.packages import operations, queues, rich_console, rich_live, rich_text, views, wiring
from postroad.cli.parameters import (
    Limit,
    Yes,
    argument,
    duration,
    duration_option,
    flag,
    option,
    pairs,
    per_second,
    queue_names,
    short_duration,
    time_option,
)
from postroad.errors import InvalidInput, PostroadError
from postroad.signals import interrupted_by_sigterm, stopped_by_signals
from postroad.telemetry import counted, recorded

QueueName = Annotated[str, argument("NAME", "The queue.", autocompletion=queue_names)]
DeadLetterQueue = Annotated[str, argument("DLQ", "The dead-letter queue.", autocompletion=queue_names)]
Confirm = Annotated[str | None, option("NAME", "The queue's name again, to skip the question.")]
_STOPPED = ("returned", "canary_failed")
# Why messages stayed that should have moved.
_LEFT = {"failed", "no_destination"}


@verb("queue create", "orders --visibility 2m --dead-letter orders-dlq")
def create(
    call: Call,
    name: Annotated[str, argument("NAME", "1 to 80 letters, digits, '-', '_'; a FIFO queue ends in .fifo.")],
    fifo: Annotated[bool, flag("--fifo", "Keep the order within each group.")] = False,
    visibility: Annotated[float | None, duration_option("How long a received message is hidden (30s).")] = None,
    dead_letter: Annotated[
        str | None, option("QUEUE", "The queue for messages that fail.", autocompletion=queue_names)
    ] = None,
    max_receives: Annotated[int | None, option("N", "Receives before a message becomes a dead letter (3).")] = None,
) -> None:
    """Create a queue; one that exists with the same settings stays as it is."""
    given: dict[str, Any] = {"visibility": visibility, "dead_letter": dead_letter, "max_receives": max_receives}
    spec = queues.QueueSpec(name, fifo=fifo, **{key: value for key, value in given.items() if value is not None})
    with call.backend() as backend:
        if dead_letter is not None:
            views.open_queue(backend, dead_letter)
        backend.create_queue(spec)
        document = views.queue_detail(backend, name)
    call.show(document, *queue_card(document))


@verb("queue delete", "orders --confirm orders", destructive=True)
def delete(call: Call, name: QueueName, confirm: Confirm = None) -> None:
    """Delete a queue with all its messages."""
    with call.backend() as backend:
        row = views.overview(backend, name)
        confirm_name(name, confirm, f'removes queue "{name}" with {_held(row)}')
        backend.delete_queue(name)
    call.show({"deleted": name}, f"deleted {name}")


@verb("queue list", "--prefix orders")
def list_(call: Call, prefix: Annotated[str, option("P", "Only names that begin with this.")] = "") -> None:
    """List the queues and how many messages they hold."""
    with call.backend() as backend:
        names = [name for name in backend.queues() if name.startswith(prefix)]
        rows = [views.queue_row(found) for found in backend.overviews(names)]
        dead = {row.dead_letter for row in rows}
        if prefix and not call.json:
            # Queues that are not listed may send their dead letters to one that is.
            dead |= {row.name for row in rows if held(row) and _takes_dead_letters(backend, row.name)}
    call.show(views.Listed(rows), queue_table(rows, dead))


def _takes_dead_letters(backend: wiring.Backend, name: str) -> bool:
    # Whoever may only look at a queue itself sees it without its colour.
    with suppress(PostroadError):
        return bool(backend.sources(name))
    return False


@verb("queue show", "orders")
def show(call: Call, name: QueueName) -> None:
    """Show one queue: how many messages it holds, its settings, and whose dead letters it receives."""
    with call.backend() as backend:
        document = views.queue_detail(backend, name)
    call.show(document, *queue_card(document))


@verb("queue purge", 'orders --confirm orders --reason "test data"', destructive=True)
def purge(
    call: Call,
    name: QueueName,
    confirm: Confirm = None,
    reason: Annotated[str, option("TEXT", "Why; required.")] = "",
    archive: Annotated[Path | None, option("FILE", "Write every message there first, as JSON lines.")] = None,
) -> None:
    """Delete all messages of a queue, leased ones included."""
    if not reason.strip():
        raise InvalidInput("reason: is empty", field="reason", remedy="Say why with --reason; nothing was changed.")
    with call.backend() as backend:
        confirm_name(name, confirm, f'removes {_held(views.overview(backend, name))} from queue "{name}"')
        with call.working(f"purging {name}"), interrupted_by_sigterm():
            purged = operations.purge(backend, name, confirm=name, reason=reason, archive=archive)
    call.show(views.Purged(purged), f"purged {counted(purged, 'message')} from {name}")


def _held(found: queues.QueueOverview) -> str:
    return counted(found.stats.visible + found.stats.in_flight + found.stats.delayed, "message")


@verb("queue peek", "orders-dlq --limit 3 --body")
def peek(
    call: Call,
    name: QueueName,
    limit: Limit = 10,
    after: Annotated[str | None, option("ID", "Start after this message.")] = None,
    body: Annotated[bool, flag("--body", "Show the bodies too.")] = False,
    force: Annotated[bool, flag("--force", "On SQS: show messages even if that counts as a receive.")] = False,
) -> None:
    """Show messages without receiving them."""
    with call.backend() as backend:
        queue = views.open_queue(backend, name)
        # Where this counts as a receive, it is a change.
        with recorded(
            backend.audit_log() if force else None, "queue.peek", name, {"limit": limit, "body": body}
        ) as done:
            found = queue.peek(limit=limit, after=after, force=force)
            done["seen"] = len(found)
        now = backend.clock.now()
    if not queue.traits.peeks_clean:
        write("note: this is a sample; the queue may hold more, and peeking counts as a receive", sys.stderr)
    items = [views.peeked(message, body=body) for message in found]
    cursor = found[-1].message_id if len(found) == limit else None
    call.show(views.Page(items, cursor), *message_blocks(items, now), *more(cursor, "--after"))


@verb("queue send", """orders --body '{"id": 7}' --attr EventType=orders.placed""")
def send(
    call: Call,
    name: QueueName,
    body: Annotated[str, option("TEXT|-", "The body; - reads it from stdin.")],
    attr: Annotated[list[str] | None, option("K=V", "An attribute; repeatable.")] = None,
    group: Annotated[str | None, option("G", "The group; the order within it is kept.")] = None,
    dedup_id: Annotated[str | None, option("D", "The id that identifies a repeat (FIFO).")] = None,
    delay: Annotated[float | None, duration_option("Hide it for this long first.")] = None,
) -> None:
    """Send one message and print its id."""
    content = sys.stdin.buffer.read() if body == "-" else body
    message = queues.OutgoingMessage(content, pairs(attr or [], "attr", "K=V"), group, dedup_id, delay or 0)
    with call.backend() as backend:
        queue = views.open_queue(backend, name)
        with recorded(backend.audit_log(), "queue.send", name, {"length": len(content), "group": group}) as done:
            [result] = queue.send([message])
            if result.error is not None:
                raise result.error
            done["message_id"] = result.message_id
    call.show({"message_id": result.message_id}, str(result.message_id))


@verb("queue groups", "orders-dlq")
def groups(
    call: Call,
    name: DeadLetterQueue,
    limit: Annotated[int | None, option("N", "Examine at most this many messages.", min=1)] = None,
) -> None:
    """Group dead letters by cause."""
    with call.backend() as backend:
        views.open_queue(backend, name)
        with call.working(f"looking at {name}"):
            document = views.failure_groups_page(operations.failure_groups(backend, name, limit=limit))
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
    names: Annotated[list[str], argument("NAME...", "The queues.", autocompletion=queue_names)],
    interval: Annotated[float | None, option("DURATION", "Time between two lines (1s).", parser=pause)] = None,
    count: Annotated[int | None, option("N", "Stop after this many rounds.", min=1)] = None,
) -> None:
    """Show how many messages queues hold, as it changes, until Ctrl-C."""
    with stopped_by_signals() as stop, call.backend() as backend, _watched(call, backend, names) as show:
        looks = 0
        while not stop.is_set():
            show([views.queue_look(views.overview(backend, name), backend.clock.now()) for name in names])
            looks += 1
            if looks == count:
                break
            stop.wait(interval or 1.0)


@contextmanager
def _watched(
    call: Call, backend: wiring.Backend, names: list[str]
) -> Iterator[Callable[[list[views.QueueLook]], None]]:
    """Yield a function that shows queues: in a table that is drawn anew on a terminal, in lines elsewhere."""
    page = None if call.json else live_console(sys.stdout, color=call.color)
    if page is None:

        def tell(rows: list[views.QueueLook]) -> None:
            for row in rows:
                numbers = f"{row.visible:,} visible, {row.in_flight:,} in flight, {row.delayed:,} delayed"
                age = short_duration(row.oldest_age_seconds)
                call.show(row, f"{row.at:%H:%M:%S}  {row.name}  {numbers}, oldest {age}")

        yield tell
        return
    dead = {name for name in names if _takes_dead_letters(backend, name)}
    with rich_live.Live(console=page, auto_refresh=False) as live:

        def draw(rows: list[views.QueueLook]) -> None:
            at = rich_text.Text(f"{rows[-1].at:%H:%M:%S}, until Ctrl-C", "dim")
            live.update(rich_console.Group(queue_table(rows, dead), at), refresh=True)

        yield draw


@verb("queue redrive", "orders-dlq --type orders.placed --rate 50 --dry-run", destructive=True)
def redrive(
    call: Call,
    name: DeadLetterQueue,
    to: Annotated[str | None, option("QUEUE", "Where to send them, if not back.", autocompletion=queue_names)] = None,
    failure_group: Annotated[str | None, option("FP", "Only this failure group.")] = None,
    key: Annotated[str | None, option("K", "Only this key.")] = None,
    type_: Annotated[str | None, option("T", "Only this event type.", "--type")] = None,
    attr: Annotated[list[str] | None, option("K=V", "Only with this attribute; repeatable.")] = None,
    id_: Annotated[list[str] | None, option("ID", "Only this message; repeatable.", "--id")] = None,
    sent_after: Annotated[datetime | None, time_option("Only messages first sent after this time.")] = None,
    sent_before: Annotated[datetime | None, time_option("Only messages first sent before this time.")] = None,
    limit: Annotated[int | None, option("N", "Move at most this many.", min=1)] = None,
    max_redrives: Annotated[
        int | None, option("N", "Leave messages that were redriven this many times already (3).", min=1)
    ] = None,
    native: Annotated[
        bool | None,
        typer.Option(
            "--native/--no-native",
            show_default=False,
            help="Let SQS move a whole queue itself, or never; by default it does if it can.",
        ),
    ] = None,
    rate: Annotated[float | None, option("R", "Move at most this many per second.", parser=per_second)] = None,
    canary: Annotated[int, option("N", "Move this many first, and wait for them.", min=0)] = 0,
    canary_wait: Annotated[float | None, duration_option("Wait at most this long for them (60s).")] = None,
    stop_after: Annotated[int, option("N", "Stop when this many came back; 0 means never.", min=0)] = 5,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would move, change nothing.")] = False,
    yes: Yes = False,
    reason: Annotated[str, option("TEXT", "Why, for the audit log.")] = "",
    status: Annotated[bool, flag("--status", "Only show what SQS itself is moving.")] = False,
) -> None:
    """Send dead letters back to where they came from."""
    if status:
        _show_tasks(call, name)
        return
    match = operations.Match(
        fingerprint=failure_group,
        key=key,
        event_type=type_,
        attributes=pairs(attr or [], "attr", "K=V"),
        ids=tuple(id_ or ()),
        sent_before=sent_before,
        sent_after=sent_after,
    )
    wait = queues.Bounds().canary_wait if canary_wait is None else canary_wait
    options: dict[str, Any] = {
        "to": to,
        "match": match,
        "limit": limit,
        "rate": rate,
        "canary": canary,
        "canary_wait": wait,
        "stop_after": stop_after,
        "native": native,
    }
    if max_redrives is not None:
        # SQS itself would move what was redriven too often as well.
        options.update(max_redrives=max_redrives, native=bool(native))
    with call.backend() as backend:
        for queue in filter(None, (name, to)):
            views.open_queue(backend, queue)
        if dry_run:
            report = operations.redrive(backend, name, dry_run=True, **options)
        elif not yes and (empty := _nothing(backend, name, options)) is not None:
            report = empty
        else:
            confirm_yes(yes, f'redriving "{name}"', lambda: _effect(backend, name, options))
            with (
                call.working(f"looking at {name}", partial(_progress, canary=canary, wait=wait)) as progress,
                interrupted_by_sigterm(),
            ):
                report = operations.redrive(backend, name, reason=reason, progress=progress, **options)
    nothing = f"{name} holds no {'messages' if match == operations.Match() else 'message that matches'}"
    call.show(
        report, *_summary(report, nothing), ok=report.status not in _STOPPED and not _LEFT & report.skipped.keys()
    )


def _nothing(backend: wiring.Backend, name: str, options: dict[str, Any]) -> queues.RedriveReport | None:
    """Return the report of a run that would find nothing to move, so that nobody has to be asked; else None."""
    from msgspec.structs import replace

    queue = backend.queue(name)
    if not queue.traits.peeks_clean:
        stats = queue.stats()
        if stats.visible or stats.in_flight or stats.delayed:
            return None
    report = operations.redrive(backend, name, dry_run=True, **options)
    return None if report.matched else replace(report, status="done")


def _effect(backend: wiring.Backend, name: str, options: dict[str, Any]) -> str:
    """Return what a run would do, without touching a message."""
    queue = backend.queue(name)
    if queue.traits.peeks_clean:
        return f"moves {_counts(operations.redrive(backend, name, dry_run=True, **options).destinations, 'message')}"
    return f"moves up to about {counted(queue.stats().visible, 'message')}"


def _show_tasks(call: Call, name: str) -> None:
    with call.backend() as backend:
        views.open_queue(backend, name)
        items = operations.redrive_tasks(backend, name)
    lines = [f"{item.status.lower()}: {item.moved:,} moved of {item.to_move or 0:,}" for item in items]
    call.show({"items": items}, *(lines or ["SQS itself moves nothing out of this queue"]))


def _progress(report: queues.RedriveReport, canary: int, wait: float) -> str:
    if 0 < report.moved <= canary:
        queues = " and ".join(sorted(report.destinations))
        first = counted(report.moved, "message")
        return f"waiting at most {short_duration(wait)} for {queues} to handle the canary of {first}"
    return f"moved {report.moved:,}, {report.returned:,} came back"


def _summary(report: queues.RedriveReport, nothing: str) -> Iterator[str]:
    if report.status in ("done", "dry_run") and not report.matched and not report.skipped:
        yield f"nothing to redrive: {nothing}"
        return
    if report.status == "native":
        yield f"SQS moves about {_counts(report.destinations)} by itself; --status shows the progress"
        return
    verb = "would move" if report.status == "dry_run" else "moved"
    yield f"{verb} {_counts(report.destinations)} ({report.matched:,} matched)"
    for why, count in report.skipped.items():
        yield f"left {count:,}: {why.replace('_', ' ')}"
    if report.status == "canary_failed" and not report.returned:
        yield "stopped: the canary was not handled in time; find out why before you go on"
    elif report.status in _STOPPED:
        yield f"stopped: {report.returned:,} came back; find out why before you go on"
    if report.status == "limit":
        yield "more matched than the limit; run it again for the rest"


def _counts(destinations: Mapping[str, int], word: str = "") -> str:
    if not destinations:
        return "nothing"
    counts = {name: counted(count, word) if word else f"{count:,}" for name, count in sorted(destinations.items())}
    return ", ".join(f"{count} to {name}" for name, count in counts.items())
