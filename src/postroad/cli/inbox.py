"""`postroad inbox init|prune|unknown|resolve`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer

from postroad.cli.audit import audited
from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.packages import inbox
from postroad.cli.parameters import Dsn, Schema, argument, chosen_dsn, duration_option, option, require
from postroad.telemetry import counted, legible

_RETENTION = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class InboxOptions:
    """The options that name an inbox."""

    dsn: Dsn = None
    table: Annotated[str, option("NAME", "The table of the inbox.")] = "inbox"
    schema: Schema = "public"

    def open(self, call: Call, retention: timedelta = _RETENTION) -> inbox.Inbox:
        """Open the inbox, which the caller closes."""
        return inbox.Inbox.open(chosen_dsn(call, self.dsn), table=self.table, schema=self.schema, retention=retention)


@verb("inbox init", "--dsn postgresql://app@db/app")
def init(call: Call, at: InboxOptions) -> None:
    """Create or migrate the tables of the inbox."""
    with at.open(call) as inbox:
        version = inbox.init()
    call.show({"version": version}, f"the inbox has version {version}")


@verb("inbox prune", "--older-than 30d")
def prune(
    call: Call,
    at: InboxOptions,
    older_than: Annotated[float | None, duration_option("Forget events older than this (30d).")] = None,
) -> None:
    """Forget events that were handled long ago."""
    with (
        at.open(call, _RETENTION if older_than is None else timedelta(seconds=older_than)) as inbox,
        call.working("pruning the inbox"),
    ):
        pruned = inbox.prune()
    call.show({"pruned": pruned}, f"pruned {counted(pruned, 'event')}")


@verb("inbox unknown", "--consumer gateway")
def unknown(
    call: Call,
    at: InboxOptions,
    consumer: Annotated[str | None, option("NAME", "Only effects of this consumer.")] = None,
    limit: Annotated[int, option("N", "At most this many.", min=1)] = 50,
) -> None:
    """List effects that were started and never finished."""
    with at.open(call) as inbox:
        effects = inbox.unknown(consumer=consumer, limit=limit)
    names = ("consumer", "event_id", "status", "attempt", "token", "idempotency_key")
    items = [{name: getattr(effect, name) for name in names} | {"event_id": str(effect.event_id)} for effect in effects]
    rows = ([effect.consumer, effect.event_id, effect.attempt] for effect in effects)
    call.show(
        {"items": items, "next_cursor": None}, table(["CONSUMER", "EVENT", "ATTEMPT"], rows, "no unknown effects")
    )


@verb("inbox resolve", 'gateway EVENT_ID --done --by kim --reason "seen"')
def resolve(
    call: Call,
    at: InboxOptions,
    consumer: Annotated[str, argument("CONSUMER", "The consumer of the effect.")],
    event_id: Annotated[str, argument("EVENT_ID", "The event.")],
    done: Annotated[
        bool | None, typer.Option("--done/--not-done", help="Whether the effect took place.", show_default=False)
    ] = None,
    by: Annotated[str, option("WHO", "Who says so; required.")] = "",
    reason: Annotated[str, option("TEXT", "How they know; required.")] = "",
) -> None:
    """Settle an effect whose outcome is unknown: one that is done never runs again, one that is not done does."""
    require(done=done, by=by, reason=reason)
    effect = {"consumer": consumer, "event": event_id, "done": done}
    with at.open(call) as inbox, audited(call, "inbox.resolve", at.table, by, reason, effect) as outcome:
        resolved = inbox.resolve(consumer, event_id, done=bool(done), by=by, reason=reason)
        outcome["resolved"] = resolved
    text = f"{consumer}:{event_id} is {'done' if done else 'not done'}"
    nothing = "no such effect is unknown; nothing was changed"
    call.show({"resolved": resolved}, legible(text) if resolved else nothing, ok=resolved)
