"""`postroad job submit|add|status|graph|resume|cancel|list`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO, confirm_name
from postroad.errors import InvalidJob, NotFound

if TYPE_CHECKING:
    from postroad.jobs import Jobs, JobViews
    from postroad.wiring import Backend

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
File = Annotated[str, typer.Argument(metavar="FILE", help='JSON {"tasks": […]}, or - for stdin.')]
QueueOption = Annotated[str, typer.Option("--queue", metavar="Q", help="The queue of tasks.")]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad job`."""
    add_verb(app, "submit", submit, example="postroad job submit report.json")
    add_verb(app, "add", add, example="postroad job add job-456 more.json")
    add_verb(app, "status", status, example="postroad job status job-456")
    add_verb(app, "graph", graph, example="postroad job graph job-456 --format mermaid")
    add_verb(app, "resume", resume, example="postroad job resume job-456")
    add_verb(app, "cancel", cancel, example="postroad job cancel job-456 --confirm job-456", destructive=True)
    add_verb(app, "list", list_, example="postroad job list --status partial_failure")


def submit(call: Call, file: File, queue: QueueOption = "tasks") -> None:
    """Submit a graph of tasks and print the job's id."""
    from postroad.views import job_made

    body = _body(file, {"tasks", "jobId", "requestId"})
    with call.backend() as backend:
        made = _jobs(call, backend, queue).submit_job(
            body.get("tasks"),  # type: ignore[arg-type]  # it is checked there, with better words
            job_id=body.get("jobId"),
            request_id=body.get("requestId"),
        )
    call.show(job_made(made), made.job_id)


def add(call: Call, job_id: JobId, file: File, queue: QueueOption = "tasks") -> None:
    """Add tasks to a job that is not over."""
    body = _body(file, {"tasks"})
    with call.backend() as backend:
        added = _jobs(call, backend, queue).add_tasks(job_id, body.get("tasks"))  # type: ignore[arg-type]  # checked there
    call.show(added, f"added {len(added.added_tasks)}, {added.total_tasks_now} in all")


def status(call: Call, job_id: JobId) -> None:
    """Tell how a job and each of its tasks stand."""
    from postroad.jobs.status import draw

    with call.backend() as backend:
        found = _views(call, backend).job_status(job_id)
    if found is None:
        raise NotFound(f'there is no job "{job_id}"')
    counts = ", ".join(f"{count} {state}" for state, count in found.progress.items() if count)
    call.show(found, draw(found, "text"), counts)


def graph(
    call: Call,
    job_id: JobId,
    format: Annotated[
        Literal["text", "mermaid", "dot"], typer.Option(metavar="FORMAT", help="text, mermaid or dot.")
    ] = "text",
) -> None:
    """Draw the graph of a job with the state of each task."""
    with call.backend() as backend:
        drawn = _views(call, backend).graph(job_id, format)
    call.show({"jobId": job_id, "format": format, "graph": drawn}, drawn)


def resume(call: Call, job_id: JobId, queue: QueueOption = "tasks") -> None:
    """Run the failed tasks of a job again."""
    from postroad.views import JobResumed

    with call.backend() as backend:
        resumed = _jobs(call, backend, queue).resume(job_id)
    document = JobResumed(resumed.job_id, resumed.resumed_tasks)
    call.show(document, f"resumed {', '.join(resumed.resumed_tasks)}")


def cancel(
    call: Call,
    job_id: JobId,
    confirm: Annotated[str | None, typer.Option(metavar="ID", help="The id again, instead of the question.")] = None,
    queue: QueueOption = "tasks",
) -> None:
    """End a job: what waits never starts, what runs is killed."""
    from postroad.views import JobCancelled

    with call.backend() as backend:
        if _views(call, backend).job_status(job_id) is None:
            raise NotFound(f'there is no job "{job_id}"')
        confirm_name(job_id, confirm, f'cancels job "{job_id}"')
        cancelled = _jobs(call, backend, queue).cancel(job_id)
    document = JobCancelled(cancelled.job_id, cancelled.cancelled_tasks)
    call.show(document, f"cancelled {len(cancelled.cancelled_tasks)} tasks")
    if not cancelled.cancelled_tasks:
        raise typer.Exit(ANSWER_IS_NO)


def list_(
    call: Call,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only jobs of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="At most so many.")] = 20,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on behind this cursor.")] = None,
) -> None:
    """List jobs, newest first."""
    from postroad.views import job_rows

    with call.backend() as backend:
        page = _views(call, backend).list_jobs(limit, cursor, status)
    lines = [f"{job.job_id}  {job.status}  {job.total_tasks} tasks" for job in page.items]
    call.show(job_rows(page, page.cursor), *(lines or ["no jobs"]))


def _jobs(call: Call, backend: Backend, queue: str = "tasks") -> Jobs:
    from postroad.jobs import Jobs

    settings = call.settings()
    return Jobs(backend, queue=queue, tenant_id=settings.tenant, app=settings.app)


def _views(call: Call, backend: Backend) -> JobViews:
    from postroad.jobs.status import JobViews

    settings = call.settings()
    return JobViews.of(backend, tenant_id=settings.tenant, app=settings.app)


def _body(file: str, known: set[str]) -> dict[str, Any]:
    import msgspec

    try:
        found = msgspec.json.decode(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise InvalidJob(f"file: {file} cannot be read: {error.strerror}", field="file") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"file: is broken JSON ({error})", field="file") from error
    if not isinstance(found, dict):
        raise InvalidJob('file: is not a JSON object {"tasks": […]}', field="file")
    if unknown := sorted(set(found) - known):
        raise InvalidJob(f"{unknown[0]}: is not a field of a job", field=unknown[0])
    return found
