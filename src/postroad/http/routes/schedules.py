"""`/schedules`: when tasks run by themselves; pausing, resuming and running them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from litestar import Response
from litestar.params import PathParameter

from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import route
from postroad.http.requests import ApiRequest, Cursor, Limit, one_page
from postroad.tasks import SchedulePage, ScheduleShown

Name = Annotated[str, PathParameter(description="The schedule's name, which is that of its task.")]


@route("GET /schedules", "read", SchedulePage)
async def list_schedules(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[SchedulePage]:
    """List all schedules by name, a page at a time, with their next and last runs."""
    return Response(await schedule_page(request, limit, cursor))


async def schedule_page(request: ApiRequest, limit: int, cursor: str | None) -> SchedulePage:
    """Return one page of the schedules."""

    def find(after: str | None) -> tuple[list[Any], str | None]:
        return request.context.work.schedules.page(limit, after)

    return await one_page(request, SchedulePage, "schedules", cursor, find)


@route("POST /schedules/{schedule:str}/pause", "operate", ScheduleShown, 404, bodiless=True)
async def pause_schedule(request: ApiRequest, schedule: Name) -> Response[Any]:
    """Let a schedule run no more until it is resumed."""
    return await _changed(request, lambda: request.context.work.schedules.pause(schedule))


@route("POST /schedules/{schedule:str}/resume", "operate", ScheduleShown, 404, bodiless=True)
async def resume_schedule(request: ApiRequest, schedule: Name) -> Response[Any]:
    """Let a paused schedule run again, from its next time on."""
    return await _changed(request, lambda: request.context.work.schedules.resume(schedule))


@route("POST /schedules/{schedule:str}/run", "operate", ScheduleShown, 404, bodiless=True)
async def run_schedule(request: ApiRequest, schedule: Name) -> Response[Any]:
    """Run its task once now, besides its times; `last_request_id` is the new run."""
    return await _changed(request, lambda: request.context.work.schedules.run(schedule))


async def _changed(request: ApiRequest, change: Callable[[], ScheduleShown]) -> Response[Any]:
    await request.no_body()
    return await perform(request, lambda: Answer(200, change()))
