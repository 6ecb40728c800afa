"""`postroad inbox init|prune|unknown|resolve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.audit import audited
from postroad.cli.call import Call, add_verb
from postroad.cli.databases import Dsn, chosen_dsn
from postroad.cli.output import ANSWER_IS_NO
from postroad.cli.parameters import duration
from postroad.errors import InvalidInput
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from postroad.inbox import Effect, Inbox

Table = Annotated[str, typer.Option(metavar="NAME", help="The table of the inbox.")]
Schema = Annotated[str, typer.Option(metavar="NAME", help="Its schema on PostgreSQL.")]
_RETENTION = timedelta(days=30)


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad inbox`."""
    add_verb(app, "init", init, example="postroad inbox init --dsn postgresql://app@db/app")
    add_verb(app, "prune", prune, example="postroad inbox prune --older-than 30d")
    add_verb(app, "unknown", unknown, example="postroad inbox unknown --consumer gateway")
    add_verb(app, "resolve", resolve, example='postroad inbox resolve gateway EVENT_ID --done --by kim --reason "seen"')


def init(call: Call, dsn: Dsn = None, table: Table = "inbox", schema: Schema = "public") -> None:
    """Make or migrate the tables of the inbox."""
    with _opened(dsn, table, schema) as inbox:
        version = inbox.init()
    call.show({"version": version}, f"the inbox has version {version}")


def prune(
    call: Call,
    older_than: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Handled longer ago than this (30d).")
    ] = None,
    dsn: Dsn = None,
    table: Table = "inbox",
    schema: Schema = "public",
) -> None:
    """Forget events that were handled long ago."""
    retention = _RETENTION if older_than is None else timedelta(seconds=older_than)
    with _opened(dsn, table, schema, retention) as inbox:
        pruned = inbox.prune()
    call.show({"pruned": pruned}, f"pruned {pruned:,}")


def unknown(
    call: Call,
    consumer: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this consumer.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 50,
    dsn: Dsn = None,
    table: Table = "inbox",
    schema: Schema = "public",
) -> None:
    """List effects that were begun and never finished."""
    with _opened(dsn, table, schema) as inbox:
        effects = inbox.unknown(consumer=consumer, limit=limit)
    call.show({"items": [_document(effect) for effect in effects], "next_cursor": None}, *_lines(effects))


def resolve(
    call: Call,
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="Whose effect it is.")],
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event.")],
    done: Annotated[
        bool | None, typer.Option("--done/--not-done", help="Whether the effect was made.", show_default=False)
    ] = None,
    by: Annotated[str, typer.Option(metavar="WHO", help="Who says so; required.")] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="How they know; required.")] = "",
    dsn: Dsn = None,
    table: Table = "inbox",
    schema: Schema = "public",
) -> None:
    """Settle an effect whose outcome is unknown: done is never made again, not done is made when the event comes."""
    _require(done=done, by=by.strip() or None, reason=reason.strip() or None)
    effect = {"consumer": consumer, "event": event_id, "done": done}
    with _opened(dsn, table, schema) as inbox, audited(call, "inbox.resolve", table, by, reason, effect) as outcome:
        resolved = inbox.resolve(consumer, event_id, done=bool(done), by=by, reason=reason)
        outcome["resolved"] = resolved
    told = f"{consumer}:{event_id} is {'done' if done else 'not done'}"
    call.show({"resolved": resolved}, legible(told) if resolved else "no such effect is unknown; nothing was changed")
    if not resolved:
        raise typer.Exit(ANSWER_IS_NO)


@contextmanager
def _opened(dsn: str | None, table: str, schema: str, retention: timedelta = _RETENTION) -> Iterator[Inbox]:
    from postroad.inbox import Inbox

    with Inbox.open(chosen_dsn(dsn), table=table, schema=schema, retention=retention) as inbox:
        yield inbox


def _require(**given: object) -> None:
    for name, value in given.items():
        if value is None:
            option = "--done or --not-done" if name == "done" else f"--{name}"
            raise InvalidInput(f"{name}: is missing", field=name, remedy=f"Give {option}; nothing was changed.")


def _document(effect: Effect) -> dict[str, Any]:
    return {
        "consumer": effect.consumer,
        "event_id": str(effect.event_id),
        "status": effect.status,
        "attempt": effect.attempt,
        "token": effect.token,
        "idempotency_key": effect.idempotency_key,
    }


def _lines(effects: list[Effect]) -> list[RenderableType]:
    from rich.text import Text

    from postroad.cli.tables import table

    if not effects:
        return [Text("no unknown effects")]
    cells = ((effect.consumer, str(effect.event_id), str(effect.attempt)) for effect in effects)
    return [table(["CONSUMER", "EVENT", "ATTEMPT"], ([Text(legible(cell)) for cell in row] for row in cells))]
