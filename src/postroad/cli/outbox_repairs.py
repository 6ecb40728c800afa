"""`postroad outbox redrive|skip|replay`: what an operator does to events that were given up, or sent astray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from postroad.cli.audit import audited
from postroad.cli.call import Call, add_verb
from postroad.cli.databases import By, Dsn, Reason, Schema, Table, opened, signed
from postroad.cli.outbox_run import topic_named
from postroad.cli.output import ANSWER_IS_NO, write
from postroad.cli.parameters import moment
from postroad.errors import InvalidInput
from postroad.settings import no_color
from postroad.signals import stopped_by_signals
from postroad.telemetry import configure_logs, legible

_REPLAY = 'postroad outbox replay --since 2026-01-31T08:00:00Z --to events.fifo --by kim --reason "wrong topic"'
_PROGRESS_EVERY = 1_000
_EXAMPLE = 'postroad outbox redrive --type transfers.submitted --by kim --reason "topic is back"'


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad outbox`."""
    add_verb(app, "redrive", redrive, example=_EXAMPLE)
    add_verb(app, "replay", replay, example=_REPLAY)
    add_verb(app, "skip", skip, example='postroad outbox skip EVENT_ID --by kim --reason "refunded by hand"')


def redrive(
    call: Call,
    event_ids: Annotated[list[str] | None, typer.Argument(metavar="EVENT_ID", help="These events.")] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Only this key.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Only this tenant.")] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Only this event type.")] = None,
    group: Annotated[str | None, typer.Option(metavar="G", help="Only this failure group.")] = None,
    by: By = "",
    reason: Reason = "",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.")] = None,
    canary: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many first; stop if one fails in the same way.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be redriven, change nothing.")] = False,
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Publish failed or parked events again, under their ids and in their order; exit 1 when none matches."""
    signed(by, reason)
    if not (event_ids or key or tenant or type_ or group):
        raise InvalidInput(
            "redrive: nothing says which events",
            field="event_ids",
            remedy="Name event ids, --key, --tenant, --type or --group; nothing was changed.",
        )
    selection = {"key": key, "tenant_id": tenant, "type": type_, "group": group, "limit": limit}
    with opened(dsn, table, schema) as outbox:
        if dry_run:
            found = outbox.redrive(event_ids or (), by=by, reason=reason, dry_run=True, **selection)  # type: ignore[arg-type]  # each is of the type of its option
        else:
            with audited(call, "outbox.redrive", table, by, reason, {"events": event_ids or [], **selection}) as done:
                found = outbox.redrive(event_ids or (), by=by, reason=reason, canary=canary, **selection)  # type: ignore[arg-type]  # each is of the type of its option
                done["redriven"] = len(found)
    ids = [str(event_id) for event_id in found]
    verb = "would redrive" if dry_run else "redriven"
    call.show({"redriven": ids, "dry_run": dry_run}, f"{verb} {len(ids):,}", *map(legible, ids))
    if not ids:
        raise typer.Exit(ANSWER_IS_NO)


def replay(
    call: Call,
    to: Annotated[str, typer.Option(metavar="NAME_OR_ARN", help="The topic to publish them to.")],
    since: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Sent at this time or later.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Sent before this time.")
    ] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Only this event type.")] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Only this key.")] = None,
    by: By = "",
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, publish nothing.")] = False,
    keyfile: Annotated[Path | None, typer.Option(metavar="F", help="Keys of encrypted payloads.")] = None,
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Publish sent events once more, under their ids and in their order; exit 1 when none matches or one fails."""
    signed(by, reason)
    if not (since or until or type_ or key):
        raise InvalidInput(
            "replay: nothing says which events",
            field="since",
            remedy="Give --since, --until, --type or --key; nothing was published.",
        )
    settings = call.settings()
    configure_logs(settings.log_level, settings.log_format, color=not no_color())
    detail = {"to": to, "type": type_, "key": key, "since": _iso(since), "until": _iso(until)}
    chosen: dict[str, Any] = {"since": since, "until": until, "type": type_, "key": key, "by": by, "reason": reason}
    with opened(dsn, table, schema, keyfile=keyfile) as outbox, topic_named(to, settings) as topic:
        if dry_run:
            report = outbox.replay(topic, dry_run=True, **chosen)
        else:
            with stopped_by_signals() as stop, audited(call, "outbox.replay", table, by, reason, detail) as done:
                report = outbox.replay(topic, progress=_progress(done, stop), **chosen)
                done.update(asdict(report))
    summary = f"would replay {report.selected:,}" if dry_run else f"replayed {report.replayed:,} of {report.selected:,}"
    trouble = [f"{report.failed:,} failed, {report.held:,} behind them held: {legible(report.last_error or '')}"]
    call.show(
        {**asdict(report), "dry_run": dry_run}, f"{summary} to {legible(to)}", *(trouble if report.failed else ())
    )
    if not report.selected or report.failed:
        raise typer.Exit(ANSWER_IS_NO)


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _progress(done: dict[str, Any], stop: threading.Event) -> Callable[[int], None]:
    """Keep the count for the audit, tell it now and then, and end between two pages when told to stop."""

    def tell(replayed: int) -> None:
        if replayed // _PROGRESS_EVERY > done.get("replayed", 0) // _PROGRESS_EVERY:
            write(f"{replayed:,} replayed", sys.stderr)
        done["replayed"] = replayed
        if stop.is_set():
            raise KeyboardInterrupt

    return tell


def skip(
    call: Call,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event to give up.")],
    by: By = "",
    reason: Reason = "",
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Give a failed or parked event up: its key goes on, and the next message of the key names the gap."""
    signed(by, reason)
    with opened(dsn, table, schema) as outbox, audited(call, "outbox.skip", table, by, reason, {"event": event_id}):
        outbox.skip(event_id, by=by, reason=reason)
    call.show({"skipped": event_id}, legible(f"skipped {event_id}"))
