"""`/schedules` and `/workers`: when tasks run by themselves, who runs them, and the pages of both."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import PathParameter
from litestar.response import Redirect

from postroad.http.idempotency import perform
from postroad.http.openapi import route
from postroad.http.requests import ApiRequest, Cursor, Limit, page
from postroad.http.routes.ui import PAGE, Id, changing, form, redirect, shown
from postroad.tasks import ScheduleShown, WorkerShown
from postroad.views import Page

Name = Annotated[str, PathParameter(description="The schedule's name, which is that of its task.")]


@route("GET /schedules", "read", Page[ScheduleShown])
async def list_schedules(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Page[ScheduleShown]:
    """List all schedules by name, a page at a time, with their next and last runs."""
    schedules = request.context.work.schedules
    return await page(request, "schedules", cursor, lambda after: schedules.page(limit, after))


@route("POST /schedules/{schedule:str}/pause", "operate", ScheduleShown, 404, bodiless=True)
async def pause_schedule(request: ApiRequest, schedule: Name) -> Response[Any]:
    """Stop a schedule from running until it is resumed."""
    return await perform(request, lambda: request.context.work.schedules.pause(schedule))


@route("POST /schedules/{schedule:str}/resume", "operate", ScheduleShown, 404, bodiless=True)
async def resume_schedule(request: ApiRequest, schedule: Name) -> Response[Any]:
    """Let a paused schedule run again, from its next time on."""
    return await perform(request, lambda: request.context.work.schedules.resume(schedule))


@route("POST /schedules/{schedule:str}/run", "operate", ScheduleShown, 404, bodiless=True)
async def run_schedule(request: ApiRequest, schedule: Name) -> Response[Any]:
    """Run its task once now, besides its times; `last_request_id` is the new run."""
    return await perform(request, lambda: request.context.work.schedules.run(schedule))


@get("/ui/schedules", **PAGE)
async def schedules_page(request: ApiRequest, cursor: Cursor = None) -> Response[str]:
    """List when tasks run by themselves."""
    return shown(request, "schedules", doc=await list_schedules.fn(request, 50, cursor))


pause_one_schedule = changing("/ui/schedules/{schedule:str}/pause", pause_schedule, "/ui/schedules")
resume_one_schedule = changing("/ui/schedules/{schedule:str}/resume", resume_schedule, "/ui/schedules")


@post("/ui/schedules/{schedule:str}/run", **form("operate"))
async def run_one_schedule(request: ApiRequest, schedule: Id) -> Redirect:
    """Run its task once now, and show the run."""
    ran = await request.context.run(lambda: request.context.work.schedules.run(schedule))
    return redirect("/ui/schedules") if ran.last_request_id is None else redirect("/ui/events", ran.last_request_id)


@route("GET /workers", "read", Page[WorkerShown])
async def list_workers(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Page[WorkerShown]:
    """List the workers that were seen within the last hour.

    Each renews its entry every 30 seconds; on AWS, every two minutes while it runs nothing.
    """

    def find(after: str | None) -> tuple[list[WorkerShown], str | None]:
        found = request.context.work.worker_page(limit=limit, after=after)
        return found.items, found.cursor

    return await page(request, "workers", cursor, find)


@get("/ui/workers", **PAGE)
async def worker_processes(request: ApiRequest, cursor: Cursor = None) -> Response[str]:
    """List worker processes, and what each runs."""
    return shown(request, "workers", doc=await list_workers.fn(request, 50, cursor))
