"""`/timeline` and `/audit`: what happened to tasks and jobs, and who changed what."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from litestar import Response
from litestar.params import QueryParameter

from postroad.errors import InvalidInput
from postroad.http.openapi import route
from postroad.http.requests import ApiRequest, Cursor, Limit, one_page
from postroad.journal import entity_of, index_for, milliseconds_of
from postroad.views import AuditPage, AuditRow, Timeline, timeline

_LONGEST_ID = 1_024
Tenant = Annotated[str | None, QueryParameter(description="The tenant; by default that of the settings.")]
App = Annotated[str | None, QueryParameter(description="Only events of this app.")]
EventType = Annotated[str | None, QueryParameter(name="type", description="Only events of this type: Task Failed.")]
EntityText = Annotated[str | None, QueryParameter(description="Only events of this task or job: TASK#id or JOB#id.")]
From = Annotated[
    str | None, QueryParameter(name="from", description="The earliest time: ISO 8601 or milliseconds since 1970.")
]
To = Annotated[str | None, QueryParameter(description="The latest time.")]


@route("GET /timeline", "read", Timeline)
async def search_journal(
    request: ApiRequest,
    limit: Limit = 20,
    cursor: Cursor = None,
    tenant: Tenant = None,
    app: App = None,
    event_type: EventType = None,
    entity: EntityText = None,
    from_time: From = None,
    to: To = None,
) -> Response[Timeline]:
    """Search the journal, newest first; the answer names the index that was used."""
    filters = {"tenant": tenant, "app": app, "type": event_type, "entity": entity, "from": from_time, "to": to}
    return Response(await timeline_page(request, limit, cursor, filters))


async def timeline_page(
    request: ApiRequest, limit: int, cursor: str | None, filters: dict[str, str | None]
) -> Timeline:
    """Return a page of the journal. `filters` has the names of the parameters; an empty one is left out."""
    given = {name: _checked(name, value) for name, value in filters.items() if value}
    asked: dict[str, Any] = {
        "entity": entity_of(given.get("entity")),
        "app": given.get("app"),
        "event_type": given.get("type"),
    }
    start, end = (milliseconds_of(given.get(name), name) for name in ("from", "to"))
    index, context = index_for(**asked), request.context
    tenant = given.get("tenant") or context.settings.tenant

    def find(after: str | None) -> tuple[list[Any], str | None]:
        journal = context.backend.journal()
        page = journal.query(
            index, **asked, tenant=tenant, start=start, end=end, descending=True, limit=limit, cursor=after
        )
        found = timeline(index, page)
        return found.items, found.next_cursor

    of = "/".join(["timeline", tenant, *(f"{name}={value}" for name, value in sorted(given.items()))])
    return await one_page(request, lambda items, following: Timeline(index, items, following), of, cursor, find)


def _checked(name: str, value: str) -> str:
    if len(value) > _LONGEST_ID:
        raise InvalidInput(f"{name}: has more than {_LONGEST_ID} characters", field=name)
    return value


@route("GET /audit", "admin", AuditPage)
async def list_audit(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[AuditPage]:
    """List who changed what, newest first, a page at a time."""
    return Response(await audit_page(request, limit, cursor))


async def audit_page(request: ApiRequest, limit: int, cursor: str | None) -> AuditPage:
    """Return one page of the audit file."""
    log = request.context.backend.audit_log()

    def find(before: str | None) -> tuple[list[Any], str | None]:
        found = [] if log is None else log.newest(limit + 1, before=None if before is None else int(before))
        rows = [AuditRow(**asdict(record)) for record in found[:limit]]
        return rows, str(found[limit - 1].seq) if len(found) > limit else None

    return await one_page(request, AuditPage, "audit", cursor, find)
