"""`/workers`: the worker processes, and what each runs."""

from __future__ import annotations

from typing import Any

from litestar import Response

from postroad.http.openapi import route
from postroad.http.requests import ApiRequest, Cursor, Limit, one_page
from postroad.views import WorkerRows, worker_row


@route("GET /workers", "read", WorkerRows)
async def list_workers(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[WorkerRows]:
    """List the workers that were seen within the last hour; each renews its entry every 30 seconds."""
    return Response(await worker_rows(request, limit, cursor))


async def worker_rows(request: ApiRequest, limit: int, cursor: str | None) -> WorkerRows:
    """Return one page of the workers."""

    def find(after: str | None) -> tuple[list[Any], str | None]:
        found = request.context.work.worker_page(limit=limit, after=after)
        return [worker_row(each) for each in found.items], found.cursor

    return await one_page(request, WorkerRows, "workers", cursor, find)
