"""`postroad job` and `postroad schedule`: graphs of tasks, and tasks that run by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from postroad.cli.call import Call, verb
from postroad.cli.display import more, table, utc_text
from postroad.cli.output import confirm_name
from postroad.cli.packages import jobs, jobs_status, rich_text, tasks, views, wiring
from postroad.cli.parameters import Confirm, Cursor, PageSize, TaskQueue, argument, json_value, option, read_file
from postroad.errors import InvalidJob, NotFound
from postroad.telemetry import counted

JobId = Annotated[str, argument("ID", "The job's id.")]
File = Annotated[str, argument("FILE", 'A JSON object with a list "tasks", or - for stdin.')]


@verb("job submit", "report.json")
def submit(call: Call, file: File, queue: TaskQueue = "tasks") -> None:
    """Submit a graph of tasks and print the job's id."""
    body = _body(file, {"tasks", "jobId", "requestId"})
    with call.backend() as backend:
        made = _jobs(call, backend, queue).submit_job(
            body.get("tasks"),  # type: ignore[arg-type]  # it is checked there, with a better error
            job_id=body.get("jobId"),
            request_id=body.get("requestId"),
        )
    call.show(views.job_made(made), made.job_id)


@verb("job add", "job-456 more.json")
def add(call: Call, job_id: JobId, file: File, queue: TaskQueue = "tasks") -> None:
    """Add tasks to a job that has not ended."""
    body = _body(file, {"tasks"})
    with call.backend() as backend:
        added = _jobs(call, backend, queue).add_tasks(job_id, body.get("tasks"))  # type: ignore[arg-type]  # checked there
    call.show(added, f"added {len(added.added_tasks)}, {added.total_tasks_now} in all")


@verb("job status", "job-456")
def status(call: Call, job_id: JobId) -> None:
    """Show the state of a job and of each of its tasks."""
    with call.backend() as backend:
        found = _job(call, backend, job_id)
    counts = ", ".join(f"{count} {state}" for state, count in found.progress.items() if count)
    call.show(found, jobs_status.draw(found, "text"), counts)


@verb("job graph", "job-456 --format mermaid")
def graph(
    call: Call,
    job_id: JobId,
    format: Annotated[Literal["text", "mermaid", "dot"], option("FORMAT", "How to draw it.")] = "text",
) -> None:
    """Draw the graph of a job with the state of each task."""
    with call.backend() as backend:
        drawn = _jobs(call, backend).graph(job_id, format)
    call.show({"jobId": job_id, "format": format, "graph": drawn}, drawn)


@verb("job resume", "job-456")
def resume(call: Call, job_id: JobId, queue: TaskQueue = "tasks") -> None:
    """Run the failed tasks of a job again."""
    with call.backend() as backend:
        resumed = _jobs(call, backend, queue).resume(job_id)
    document = views.JobResumed(resumed.job_id, resumed.resumed_tasks)
    call.show(document, f"resumed {', '.join(resumed.resumed_tasks)}")


@verb("job cancel", "job-456 --confirm job-456", destructive=True)
def cancel(call: Call, job_id: JobId, confirm: Confirm = None, queue: TaskQueue = "tasks") -> None:
    """Cancel a job: waiting tasks do not start, running ones are killed."""
    with call.backend() as backend:
        _job(call, backend, job_id)
        confirm_name(job_id, confirm, f'cancels job "{job_id}"')
        cancelled = _jobs(call, backend, queue).cancel(job_id)
    tasks = cancelled.cancelled_tasks
    call.show(views.JobCancelled(cancelled.job_id, tasks), f"cancelled {counted(len(tasks), 'task')}", ok=bool(tasks))


@verb("job list", "--status partial_failure")
def list_jobs(
    call: Call,
    status: Annotated[str | None, option("STATUS", "Only jobs with this status.")] = None,
    limit: PageSize = 20,
    cursor: Cursor = None,
) -> None:
    """List jobs, newest first."""
    with call.backend() as backend:
        jobs = _jobs(call, backend)
        page = jobs.list_jobs(limit, cursor, status)
        while not page.items and page.cursor is not None:
            # None of those that were examined matches; older ones may.
            page = jobs.list_jobs(limit, page.cursor, status)
    rows = ([job.job_id, job.status, f"{job.total_tasks:,}", utc_text(job.created_at)] for job in page.items)
    shown = table(["JOB", "STATUS", ">TASKS", "CREATED"], rows, "no such jobs")
    call.show(views.Page(page.items, page.cursor), shown, *more(page.cursor))


def _jobs(call: Call, backend: wiring.Backend, queue: str = "tasks") -> jobs.Jobs:
    return jobs.Jobs(backend, queue=queue, **call.settings().identity)


def _job(call: Call, backend: wiring.Backend, job_id: str) -> jobs.JobStatus:
    found = _jobs(call, backend).job_status(job_id)
    if found is None:
        raise NotFound(f'there is no job "{job_id}"')
    return found


def _body(file: str, known: set[str]) -> dict[str, Any]:
    found = json_value(read_file(file, "file", InvalidJob), "file", InvalidJob)
    if not isinstance(found, dict):
        raise InvalidJob('file: is not a JSON object with a list "tasks"', field="file")
    if unknown := sorted(set(found) - known):
        raise InvalidJob(f"{unknown[0]}: is not a field of a job", field=unknown[0])
    return found


ScheduleName = Annotated[str, argument("NAME", "The schedule, which has the name of its task.")]
_LATE = timedelta(minutes=1)


@verb("schedule list", "--json")
def list_schedules(call: Call) -> None:
    """List all schedules with their next and last runs."""
    with call.backend() as backend:
        found = _schedules(call, backend).list_all()
        rows = list(_schedule_rows(found, backend.clock.now()))
    nothing = "no schedules; a worker registers those of its tasks when it starts"
    headings = ["SCHEDULE", "WHEN", "ZONE", "NEXT", "LAST", "LAST REQUEST ID"]
    call.show(views.Page(found, None), table(headings, rows, nothing))


def _schedule_rows(found: list[tasks.ScheduleShown], now: datetime) -> Iterator[list[Any]]:
    for each in found:
        following: Any = rich_text.Text("paused", "yellow") if each.paused else _time(each.next_at)
        if each.next_at is not None and each.next_at < now - _LATE:
            following = rich_text.Text(f"{_time(each.next_at)}, late: no worker runs it", "red")
        yield [
            rich_text.Text(each.name, "bold"),
            each.schedule,
            each.tz,
            following,
            _time(each.last_at),
            each.last_request_id,
        ]


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


@verb("schedule pause", "nightly")
def pause_schedule(call: Call, name: ScheduleName) -> None:
    """Stop a schedule from running until it is resumed."""
    with call.backend() as backend:
        shown = _schedules(call, backend).pause(name)
    call.show(shown, f"{name} is paused; `postroad schedule resume {name}` lets it run again")


@verb("schedule resume", "nightly")
def resume_schedule(call: Call, name: ScheduleName) -> None:
    """Let a paused schedule run again, from its next time on."""
    with call.backend() as backend:
        shown = _schedules(call, backend).resume(name)
    call.show(shown, f"{name} runs next at {_time(shown.next_at)}")


@verb("schedule run", "nightly")
def run_schedule(call: Call, name: ScheduleName) -> None:
    """Run the task of a schedule once now, and print the request id."""
    with call.backend() as backend:
        shown = _schedules(call, backend).run(name)
    call.show(shown, str(shown.last_request_id))


def _schedules(call: Call, backend: wiring.Backend) -> tasks.Schedules:
    return tasks.Schedules(backend, **call.settings().identity)
