"""`/jobs`: graphs of tasks, their states, resuming and cancelling them, and their pages."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Response, get
from litestar.params import PathParameter, QueryParameter

from postroad.dashboard import MOST_DRAWN, job_drawing
from postroad.http import forms
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import example, route
from postroad.http.requests import ApiRequest, Cursor, Limit, page
from postroad.http.routes.tasks import found
from postroad.http.routes.ui import PAGE, Id, Text, changing, shown
from postroad.jobs import JobStatus, JobSummary, TasksAdded
from postroad.views import JobCancelled, JobMade, JobResumed, Page, TaskShown, job_made, task_shown

_MOST_ERRORS: Final = 3
_STATUSES: Final = ("", "processing", "partial_failure", "completed", "cancelled")
_TASK_ROWS: Final = 200
_URGENT: Final = ("failed", "processing", "pending", "waiting", "cancelled", "completed")
Start = Annotated[int, QueryParameter(ge=0)]
_TASKS = [
    {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
    {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
]
NewJobBody = Annotated[forms.NewJob, example({"tasks": _TASKS})]
MoreTasksBody = Annotated[forms.MoreTasks, example({"tasks": _TASKS[1:]})]
JobId = Annotated[str, PathParameter(description="The job's id.")]
Status = Annotated[str | None, QueryParameter(description="Only jobs of this status.")]


@route("POST /jobs", "publish", JobMade, 409, status=201, says="The job; 200 if it exists already.")
async def submit_job(request: ApiRequest, data: NewJobBody) -> Response[Any]:
    """Submit a graph of tasks. The same `jobId` with the same tasks is the same job."""

    def submit() -> Answer:
        job_id = request.repeatable_id() if data.jobId is None else data.jobId
        made = request.context.work.jobs.submit_job(data.tasks, job_id=job_id, request_id=data.requestId)
        return Answer(201 if made.created else 200, job_made(made))

    return await perform(request, submit)


@route("GET /jobs", "read", Page[JobSummary])
async def list_jobs(
    request: ApiRequest, limit: Limit = 20, cursor: Cursor = None, status: Status = None
) -> Page[JobSummary]:
    """List all jobs, newest first, a page at a time."""

    def find(after: str | None) -> tuple[list[JobSummary], str | None]:
        listed = request.context.work.jobs.list_jobs(limit, after, status)
        return listed.items, listed.cursor

    return await page(request, f"jobs/{status or ''}", cursor, find)


@route("GET /jobs/{job:str}", "read", JobStatus, 404, says="The job.")
async def show_job(request: ApiRequest, job: JobId) -> JobStatus:
    """Show a job with the state of each of its tasks."""
    return await request.context.run(lambda: found("job", job, lambda: request.context.work.jobs.job_status(job)))


@route("POST /jobs/{job:str}/tasks", "publish", TasksAdded, 404, 409, says="The tasks are part of the job.")
async def add_job_tasks(request: ApiRequest, job: JobId, data: MoreTasksBody) -> Response[Any]:
    """Add tasks to a job that has not ended."""
    jobs = request.context.work.jobs
    return await perform(request, lambda: found("job", job, lambda: jobs.add_tasks(job, data.tasks)))


@route("POST /jobs/{job:str}/resume", "operate", JobResumed, 404, 409, bodiless=True)
async def resume_job(request: ApiRequest, job: JobId) -> Response[Any]:
    """Run the failed tasks of a job again."""

    def resume() -> JobResumed:
        resumed = found("job", job, lambda: request.context.work.jobs.resume(job))
        return JobResumed(job, resumed.resumed_tasks)

    return await perform(request, resume)


@route("POST /jobs/{job:str}/cancel", "operate", JobCancelled, 404, 409, bodiless=True)
async def cancel_job(request: ApiRequest, job: JobId) -> Response[Any]:
    """Cancel a job: waiting tasks do not start, running ones are killed."""

    def cancel() -> JobCancelled:
        cancelled = found("job", job, lambda: request.context.work.jobs.cancel(job))
        return JobCancelled(job, cancelled.cancelled_tasks)

    return await perform(request, cancel)


@get("/ui/jobs", **PAGE)
async def jobs_page(request: ApiRequest, cursor: Cursor = None, status: Text = None) -> Response[str]:
    """List jobs, newest first."""
    doc = await list_jobs.fn(request, 50, cursor, status or None)
    return shown(request, "jobs", doc=doc, chosen=status or "", statuses=_STATUSES)


@get("/ui/jobs/{job:str}", **PAGE)
async def job_page(request: ApiRequest, job: Id, start: Start = 0) -> Response[str]:
    """Draw a job, and show what failed in it."""
    doc = await show_job.fn(request, job)
    failed = await request.context.run(lambda: _failed(request, doc))
    is_large = len(doc.tasks) > MOST_DRAWN
    rows = sorted(doc.tasks, key=lambda task: _URGENT.index(task.status)) if is_large else doc.tasks
    following = start + _TASK_ROWS if len(rows) > start + _TASK_ROWS else None
    rows = rows[start : start + _TASK_ROWS]
    drawing = await request.context.run(lambda: job_drawing(doc))
    return shown(
        request,
        "job",
        current="jobs",
        doc=doc,
        rows=rows,
        following=following,
        drawing=drawing,
        failed=failed,
        is_large=is_large,
    )


def _failed(request: ApiRequest, job: JobStatus) -> list[TaskShown]:
    """Return the first failed tasks of a job with their errors."""
    names = [task.request_id for task in job.tasks if task.status == "failed"][:_MOST_ERRORS]
    states = [request.context.work.task_state(name) for name in names]
    return [task_shown(state) for state in states if state is not None]


resume_one_job = changing("/ui/jobs/{job:str}/resume", resume_job, "/ui/jobs/{job}")
cancel_one_job = changing("/ui/jobs/{job:str}/cancel", cancel_job, "/ui/jobs/{job}")
