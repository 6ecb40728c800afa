"""`postroad journal init|query|verify|prune`, and `postroad why`, which explains the state of any id."""

from __future__ import annotations

from typing import Annotated, Any

from postroad.cli.call import Call, verb
from postroad.cli.display import more, table, utc_text
from postroad.cli.output import wrapped
from postroad.cli.packages import journal, journal_maintenance, operations, views
from postroad.cli.parameters import Cursor, Limit, argument, duration, flag, option
from postroad.errors import InvalidInput
from postroad.telemetry import counted, legible

Tenant = Annotated[str | None, option("ID", "The tenant; by default that of the settings.")]


@verb("journal init", "--url aws://eu-central-1")
def init(call: Call) -> None:
    """Create the journal's storage, or report how it differs from what is needed."""
    with call.backend() as backend:
        backend.journal().init()
        url = backend.url
    call.show({"ready": True, "url": url}, f"the journal of {url} is ready")


@verb("journal query", "--entity TASK#req-123 --order asc")
def query(
    call: Call,
    entity: Annotated[str | None, option("TYPE#ID", "Events of one entity: TASK#req-123.")] = None,
    app: Annotated[str | None, option("ID", "Events of one app.")] = None,
    type: Annotated[str | None, option("NAME", 'Events of one type: "Task Failed".')] = None,
    tenant: Tenant = None,
    from_: Annotated[str | None, option("TIME", "The earliest time: ISO 8601 or milliseconds.", "--from")] = None,
    to: Annotated[str | None, option("TIME", "The latest time.")] = None,
    order: Annotated[str, option("asc|desc", "Oldest or newest first.")] = "desc",
    limit: Limit = 100,
    cursor: Cursor = None,
    raw: Annotated[bool, flag("--raw", "Do not load what is stored in blobs.")] = False,
) -> None:
    """Read the journal, by entity, app, type and time."""
    if order not in ("asc", "desc"):
        raise InvalidInput(f"order: {order!r} is neither asc nor desc", field="order", remedy="Use asc or desc.")
    asked: dict[str, Any] = {"entity": journal.entity_of(entity), "app": app, "event_type": type}
    index = journal.index_for(**asked)
    with call.backend() as backend:
        page = backend.journal().query(
            index,
            **asked,
            tenant=tenant or call.settings().tenant,
            start=journal.milliseconds_of(from_, "from"),
            end=journal.milliseconds_of(to, "to"),
            descending=order == "desc",
            limit=limit,
            cursor=cursor,
            raw=raw,
        )
    document = views.timeline(index, page)
    rows = (
        [utc_text(item["timestamp"]), item["eventType"], f"{item['entityType']}#{item['entityId']}", item["app"]]
        for item in document.items
    )
    call.show(document, table(["TIME", "TYPE", "ENTITY", "APP"], rows, "no events"), *more(document.next_cursor))


@verb("journal verify", "--tenant acme")
def verify(call: Call, tenant: Tenant = None) -> None:
    """Compute states from all events and compare them with the stored ones; exit 1 on a difference."""
    whose = tenant or call.settings().tenant
    with (
        call.backend() as backend,
        call.working("reading the journal", lambda events: f"read {counted(events, 'event')}") as progress,
    ):
        found = journal_maintenance.verify(backend.journal(), whose, progress=progress)
    document = {
        "tenant": whose,
        "events": found.events,
        "tasks": found.tasks,
        "keeps_states": found.keeps_states,
        "differences": [
            {"requestId": each.request_id, "kept": each.kept, "folded": each.folded} for each in found.differences
        ],
    }
    read = f"{counted(found.events, 'event')} of {counted(found.tasks, 'task')}"
    lines = [f"{read}; this journal keeps no states beside them"]
    if found.keeps_states:
        lines = [
            f"{read}, {counted(len(found.differences), 'difference')}",
            *(f"{each.request_id}: kept {each.kept or '-'}, folded {each.folded or '-'}" for each in found.differences),
        ]
    call.show(document, *lines, ok=not found.differences)


@verb("journal prune", "--older-than 90d")
def prune(
    call: Call,
    older_than: Annotated[float, option("DURATION", "Delete events older than this: 90d.", parser=duration, min=0)],
    tenant: Tenant = None,
) -> None:
    """Delete old events, in small steps, except those of running tasks and jobs."""

    def describe(so_far: Any) -> str:
        return f"pruned {so_far.removed:,}"

    with call.backend() as backend, call.working("reading the journal", describe) as progress:
        before = int((backend.clock.now().timestamp() - older_than) * 1_000)
        pruned = journal_maintenance.prune(
            backend.journal(), tenant or call.settings().tenant, before=before, progress=progress
        )
    document = {"pruned": pruned.removed, "kept": pruned.kept}
    call.show(document, f"{describe(pruned)}, kept {pruned.kept:,} of running tasks and open jobs")


@verb("why", "req-123")
def why(
    call: Call,
    name: Annotated[str, argument("ID", "The id of an event, a message, a push, a task or a job.")],
) -> None:
    """Explain what happened to an event, message, push, task or job, its state, and what to do next."""
    settings = call.settings()
    with call.backend() as backend:
        story = operations.why(
            backend, name, tenant=settings.tenant, app=settings.app, agents=lambda: backend.agents().store
        )
    lines = [f"{story.verdict.replace('_', ' ')}  {legible(story.summary)}"]
    for step in story.steps:
        where = None if story.kind in ("task", "job") else step.where
        what = legible(" · ".join(filter(None, (step.what, where, step.by, step.detail))))
        lines.append(f"{step.at}  {'✓' if step.ok else '✗'} {what}")
        # What a failed attempt raised and printed last.
        lines += [f"    {legible(line)}" for line in step.lines]
    call.show(story, *wrapped([*lines, f"next: {legible(story.next)}"]))
