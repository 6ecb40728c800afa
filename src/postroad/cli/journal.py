"""`postroad journal init|query|verify|prune`, and `postroad why`: one story for any id."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO, write
from postroad.cli.parameters import duration
from postroad.errors import InvalidInput, InvalidQuery

if TYPE_CHECKING:
    from rich.console import RenderableType

    from postroad.journal import Entity, Step, Verification
    from postroad.views import Timeline

Tenant = Annotated[str | None, typer.Option(metavar="ID", help="Whose events; the setting `tenant` by default.")]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad journal`."""
    add_verb(app, "init", init, example="postroad journal init --url aws://eu-central-1")
    add_verb(app, "query", query, example="postroad journal query --entity TASK#req-123 --order asc")
    add_verb(app, "verify", verify, example="postroad journal verify --tenant acme")
    add_verb(app, "prune", prune, example="postroad journal prune --older-than 90d")


def init(call: Call) -> None:
    """Make the journal's storage, or say how what is there differs from what is needed."""
    with call.backend() as backend:
        backend.journal().init()
        url = backend.url
    call.show({"ready": True, "url": url}, f"the journal of {url} is ready")


def query(
    call: Call,
    entity: Annotated[str | None, typer.Option(metavar="TYPE#ID", help="Events of one entity: TASK#req-123.")] = None,
    app: Annotated[str | None, typer.Option(metavar="ID", help="Events of one app.")] = None,
    type: Annotated[str | None, typer.Option(metavar="NAME", help='Events of one type: "Task Failed".')] = None,
    tenant: Tenant = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Not before: ISO 8601 or milliseconds.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="Not after.")] = None,
    order: Annotated[str, typer.Option(metavar="asc|desc", help="Oldest or newest first.")] = "desc",
    limit: Annotated[int, typer.Option(metavar="N", help="Events of a page, 1 to 1000.")] = 100,
    cursor: Annotated[str | None, typer.Option(metavar="TEXT", help="The `next_cursor` of the page before.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave what lies in blobs there.")] = False,
) -> None:
    """Read the journal: any of entity, app and type, between two times."""
    from postroad.journal.records import index_for
    from postroad.views import timeline

    if order not in ("asc", "desc"):
        raise InvalidInput(f"order: {order!r} is neither asc nor desc", field="order", remedy="Use asc or desc.")
    asked: dict[str, Any] = {"entity": _entity(entity), "app": app, "event_type": type}
    index = index_for(**asked)
    with call.backend() as backend:
        page = backend.journal().query(
            index,
            **asked,
            tenant=tenant or call.settings().tenant,
            start=_milliseconds(from_, "from"),
            end=_milliseconds(to, "to"),
            descending=order == "desc",
            limit=limit,
            cursor=cursor,
            raw=raw,
        )
    document = timeline(index, page)
    call.show(document, *_lines(document))


def verify(call: Call, tenant: Tenant = None) -> None:
    """Fold all events and compare with the states that are kept beside them; exit 1 on a difference."""
    from postroad.journal.maintenance import verify as fold_and_compare

    whose = tenant or call.settings().tenant
    with call.backend() as backend:
        found = fold_and_compare(backend.journal(), whose, told=_tell)
    document = {
        "tenant": whose,
        "events": found.events,
        "tasks": found.tasks,
        "keeps_states": found.keeps_states,
        "differences": [
            {"requestId": each.request_id, "kept": each.kept, "folded": each.folded} for each in found.differences
        ],
    }
    call.show(document, *_verdict(found))
    if found.differences:
        raise typer.Exit(ANSWER_IS_NO)


def prune(
    call: Call,
    older_than: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="What happened longer ago: 90d.", min=0)
    ],
    tenant: Tenant = None,
) -> None:
    """Remove old events, in small steps; those of running tasks and of jobs that are not over stay."""
    from postroad.journal.maintenance import prune as remove

    with call.backend() as backend:
        before = int((backend.clock.now().timestamp() - older_than) * 1_000)
        pruned = remove(backend.journal(), tenant or call.settings().tenant, before=before)
    document = {"pruned": pruned.removed, "kept": pruned.kept}
    call.show(document, f"pruned {pruned.removed:,}, kept {pruned.kept:,} of running tasks and open jobs")


def _entity(text: str | None) -> Entity | None:
    """Return `TASK#req-123` as a type and an id."""
    if text is None:
        return None
    kind, mark, name = text.partition("#")
    if not mark:
        raise InvalidQuery(f"entity: {text!r} is not a type and an id", field="entity", remedy="Write TASK#req-123.")
    return kind, name


def _milliseconds(text: str | None, field: str) -> int | None:
    """Return a time in milliseconds, given as that or as ISO 8601, in UTC unless it names its zone."""
    if text is None:
        return None
    if text.lstrip("-").isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        remedy = "Give milliseconds since 1970, or ISO 8601 such as 2030-01-01T00:00:00Z."
        raise InvalidQuery(f"{field}: {text!r} is not a moment", field=field, remedy=remedy) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _tell(events: int) -> None:
    if sys.stderr.isatty():
        write(f"{events:,} events read", sys.stderr)


def _verdict(found: Verification) -> list[str]:
    read = f"{found.events:,} events of {found.tasks:,} tasks"
    if not found.keeps_states:
        return [f"{read}; this journal keeps no states beside them"]
    return [
        f"{read}, {len(found.differences):,} differences",
        *(f"{each.request_id}: kept {each.kept}, folded {each.folded}" for each in found.differences),
    ]


def _lines(page: Timeline) -> list[RenderableType]:
    from rich.text import Text

    from postroad.cli.tables import table
    from postroad.telemetry import legible

    if not page.items:
        return [Text("no events")]
    cells = (
        (_when(item["timestamp"]), item["eventType"], f"{item['entityType']}#{item['entityId']}", item["app"])
        for item in page.items
    )
    rows = table(["TIME", "TYPE", "ENTITY", "APP"], ([Text(legible(cell)) for cell in row] for row in cells))
    more = [Text(f"more: --cursor {page.next_cursor}")] if page.next_cursor else []
    return [rows, *more]


def _when(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def add_why_to(app: typer.Typer) -> None:
    """Make the verb part of the program."""
    add_verb(app, "why", why, example="postroad why req-123")


def why(call: Call, name: Annotated[str, typer.Argument(metavar="ID", help="The id of a task or job.")]) -> None:
    """Tell what happened to a task or job, how it stands, and what would move it on."""
    from postroad.operations.why import why as story_of
    from postroad.telemetry import legible

    settings = call.settings()
    with call.backend() as backend:
        story = story_of(backend, name, tenant=settings.tenant, app=settings.app)
    steps = [line for step in story.steps for line in _step_lines(step)]
    call.show(
        story,
        f"{story.verdict.replace('_', ' ')}  {legible(story.summary)}",
        *steps,
        f"next: {legible(story.next)}",
    )


def _step_lines(step: Step) -> list[str]:
    """The step, and below it what a failed attempt raised and printed last."""
    from postroad.telemetry import legible

    told = legible(" · ".join(filter(None, (step.what, step.by, step.detail))))
    return [f"{step.at}  {'✓' if step.ok else '✗'} {told}", *(f"    {legible(line)}" for line in step.lines)]
