"""`postroad outbox redrive|skip`: what an operator does to events that were given up."""

from __future__ import annotations

from typing import Annotated

import typer

from postroad.cli.auditing import audited
from postroad.cli.call import Call
from postroad.cli.dsn import Dsn
from postroad.cli.errors import ANSWER_IS_NO
from postroad.cli.outboxes import By, Reason, Schema, Table, opened, signed
from postroad.cli.verbs import add_verb
from postroad.errors import InvalidInput
from postroad.telemetry import legible

_EXAMPLE = 'postroad outbox redrive --type transfers.submitted --by kim --reason "topic is back"'


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad outbox`."""
    add_verb(app, "redrive", redrive, example=_EXAMPLE)
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
            "redrive: nothing says which events", field="event_ids",
            remedy="Name event ids, --key, --tenant, --type or --group; nothing was changed.",
        )  # fmt: skip
    selection = {"key": key, "tenant_id": tenant, "type": type_, "group": group, "limit": limit}
    with opened(dsn, table, schema) as outbox:
        if dry_run:
            found = outbox.redrive(event_ids or (), by=by, reason=reason, dry_run=True, **selection)  # type: ignore[arg-type]  # each is of the type of its option
        else:
            with audited(call, "outbox redrive", table, by, reason, {"events": event_ids or [], **selection}) as done:
                found = outbox.redrive(event_ids or (), by=by, reason=reason, canary=canary, **selection)  # type: ignore[arg-type]  # each is of the type of its option
                done["redriven"] = len(found)
    ids = [str(event_id) for event_id in found]
    verb = "would redrive" if dry_run else "redriven"
    call.show({"redriven": ids, "dry_run": dry_run}, f"{verb} {len(ids):,}", *map(legible, ids))
    if not ids:
        raise typer.Exit(ANSWER_IS_NO)


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
    with opened(dsn, table, schema) as outbox, audited(call, "outbox skip", table, by, reason, {"event": event_id}):
        outbox.skip(event_id, by=by, reason=reason)
    call.show({"skipped": event_id}, legible(f"skipped {event_id}"))
