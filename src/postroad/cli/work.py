"""`postroad task` and `postroad job`: submit tasks and graphs of tasks, and show, resume and cancel them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call, verb
from postroad.cli.display import utc_text
from postroad.cli.output import confirm_name
from postroad.cli.parameters import json_object, json_value, read_file
from postroad.errors import InvalidJob, InvalidTask, NotFound
from postroad.telemetry import counted, legible

if TYPE_CHECKING:
    from postroad.jobs import Jobs, JobStatus, JobViews
    from postroad.journal import JournalEvent, TaskState
    from postroad.tasks import TaskProducer
    from postroad.views import TaskShown
    from postroad.wiring import Backend

RequestId = Annotated[str, typer.Argument(metavar="ID", help="The request id that `task submit` printed.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
File = Annotated[str, typer.Argument(metavar="FILE", help='A JSON object with a list "tasks", or - for stdin.')]
QueueOption = Annotated[str, typer.Option("--queue", metavar="Q", help="The queue of tasks.")]
Confirm = Annotated[str | None, typer.Option(metavar="ID", help="The id again, to skip the question.")]


@verb("task init", "--url aws://eu-central-1")
def init(call: Call, queue: QueueOption = "tasks") -> None:
    """Create the queues of tasks, or report how existing ones differ from what is needed."""
    from postroad.tasks import ensure_queues
    from postroad.tasks.messages import queue_specs

    with call.backend() as backend:
        ensure_queues(backend, queue)
        names = [spec.name for spec in queue_specs(backend.stage_prefix + queue)]
    call.show({"ready": True, "queues": names}, f"ready: {', '.join(names)}")


@verb("task submit", """scrape-store --input '{"storeId": 7}'""")
def submit(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task.")],
    input: Annotated[
        str, typer.Option("--input", metavar="JSON", help="Its input, a JSON object; @file or - for stdin.")
    ] = "{}",
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The same id with the same input is the same run.")
    ] = None,
    queue: QueueOption = "tasks",
) -> None:
    """Submit a task and print its request id."""
    from postroad.views import submitted

    if input == "-" or input.startswith("@"):
        given = json_object(read_file(input.removeprefix("@"), "input", InvalidTask), "input", InvalidTask)
    else:
        given = json_object(input, "input", InvalidTask)
    with call.backend() as backend:
        producer = _producer(call, backend, queue)
        handle = producer.submit(name, given, request_id=request_id)
        state = None if handle.created else producer.status(handle.request_id)
    call.show(submitted(handle, "pending" if state is None else state.state), handle.request_id)


@verb("task status", "req-123")
def status(
    call: Call,
    request_id: RequestId,
    at: Annotated[int | None, typer.Option(metavar="MS", help="Its state at this time, in milliseconds.")] = None,
) -> None:
    """Show the state of a task, its progress, and where it failed."""
    from postroad.views import task_shown

    with call.backend() as backend:
        task = task_shown(_state(call, backend, request_id, at))
    call.show(task, *status_lines(task))


def status_lines(task: TaskShown) -> list[str]:
    """Return the state of a task for people."""
    from postroad.journal import TaskProgress

    lines = [
        f"{task.request_id}  {task.state}  run {task.run}, attempt {task.attempt}",
        f"{utc_text(task.last_event_at)}  {legible(task.last_event_type)}",
    ]
    if isinstance(task.progress, TaskProgress):
        lines.append(f"progress: {legible(task.progress)}")
    if task.error is not None:
        lines.append(f"{legible(task.error_category or '-')}: {legible(task.error)}")
        lines += [f"    {legible(line)}" for line in task.lines]
    if task.output is not None:
        # Plain ASCII, so that no output controls the terminal.
        lines.append(json.dumps(task.output))
    return lines


@verb("task history", "req-123 --json")
def history(call: Call, request_id: RequestId) -> None:
    """List every event of a task, in order."""
    from postroad.journal import task_history
    from postroad.views import Page, event_item

    check_request_id(request_id)
    with call.backend() as backend:
        events = task_history(backend.journal(), call.settings().tenant, request_id)
    if not events:
        raise NotFound(f'there is no task "{request_id}"')
    items = [event_item(event) for event in events]
    call.show(Page(items, None), *(line for event in events for line in _event_lines(event)))


def _event_lines(event: JournalEvent) -> list[str]:
    """Return the event, and below it what a failed attempt raised and printed last."""
    given = event.properties
    facts = [f"{name} {given[name]}" for name in ("run", "attemptNumber", "errorCategory") if name in given]
    facts += [given["error"]] if "error" in given else []
    detail = "  " + ", ".join(map(legible, facts)) if facts else ""
    printed = [line for name in ("traceback", "lastLines") for line in given.get(name) or ()]
    head = f"{utc_text(event.timestamp)}  {legible(event.event_type)}{detail}"
    return [head, *(f"    {legible(line)}" for line in printed)]


@verb("task cancel", "req-123 --confirm req-123", destructive=True)
def cancel(call: Call, request_id: RequestId, confirm: Confirm = None) -> None:
    """Prevent a task from running, or kill it if it runs; exit 1 if it had ended already."""
    from postroad.tasks import TaskRecords, TaskRuns
    from postroad.views import TaskCancelled

    check_request_id(request_id)
    with call.backend() as backend:
        # No question about a task that does not exist.
        TaskRuns(backend.journal(), TaskRecords(backend), call.settings().tenant).latest(request_id)
        confirm_name(request_id, confirm, f'cancels task "{request_id}"')
        cancelled = _producer(call, backend).cancel(request_id)
    text = "cancelled" if cancelled else "it had ended already"
    call.show(TaskCancelled(request_id, cancelled), text, ok=cancelled)


def check_request_id(request_id: str) -> None:
    """Raise `InvalidTask` for a text that cannot be a request id."""
    from postroad.arguments import check
    from postroad.tasks.messages import AnyRequestId

    check(request_id, AnyRequestId, "requestId", InvalidTask)


def _state(call: Call, backend: Backend, request_id: str, at: int | None = None) -> TaskState:
    """Return the state of the task. Reading it creates no queue, so it needs no producer."""
    from postroad.tasks import TaskRecords, current_state

    check_request_id(request_id)
    state = current_state(backend.journal(), TaskRecords(backend), call.settings().tenant, request_id, at)
    if state is None:
        raise NotFound(f'there is no task "{request_id}"')
    return state


def _producer(call: Call, backend: Backend, queue: str = "tasks") -> TaskProducer:
    from postroad.tasks import TaskProducer

    settings = call.settings()
    return TaskProducer(backend, queue=queue, tenant_id=settings.tenant, app=settings.app)


@verb("job submit", "report.json")
def submit_job(call: Call, file: File, queue: QueueOption = "tasks") -> None:
    """Submit a graph of tasks and print the job's id."""
    from postroad.views import job_made

    body = _body(file, {"tasks", "jobId", "requestId"})
    with call.backend() as backend:
        made = _jobs(call, backend, queue).submit_job(
            body.get("tasks"),  # type: ignore[arg-type]  # it is checked there, with a better error
            job_id=body.get("jobId"),
            request_id=body.get("requestId"),
        )
    call.show(job_made(made), made.job_id)


@verb("job add", "job-456 more.json")
def add(call: Call, job_id: JobId, file: File, queue: QueueOption = "tasks") -> None:
    """Add tasks to a job that has not ended."""
    body = _body(file, {"tasks"})
    with call.backend() as backend:
        added = _jobs(call, backend, queue).add_tasks(job_id, body.get("tasks"))  # type: ignore[arg-type]  # checked there
    call.show(added, f"added {len(added.added_tasks)}, {added.total_tasks_now} in all")


@verb("job status", "job-456")
def job_status(call: Call, job_id: JobId) -> None:
    """Show the state of a job and of each of its tasks."""
    from postroad.jobs.status import draw

    with call.backend() as backend:
        found = _job(call, backend, job_id)
    counts = ", ".join(f"{count} {state}" for state, count in found.progress.items() if count)
    call.show(found, draw(found, "text"), counts)


@verb("job graph", "job-456 --format mermaid")
def graph(
    call: Call,
    job_id: JobId,
    format: Annotated[
        Literal["text", "mermaid", "dot"], typer.Option(metavar="FORMAT", help="How to draw it: text, mermaid or dot.")
    ] = "text",
) -> None:
    """Draw the graph of a job with the state of each task."""
    with call.backend() as backend:
        drawn = _views(call, backend).graph(job_id, format)
    call.show({"jobId": job_id, "format": format, "graph": drawn}, drawn)


@verb("job resume", "job-456")
def resume(call: Call, job_id: JobId, queue: QueueOption = "tasks") -> None:
    """Run the failed tasks of a job again."""
    from postroad.views import JobResumed

    with call.backend() as backend:
        resumed = _jobs(call, backend, queue).resume(job_id)
    document = JobResumed(resumed.job_id, resumed.resumed_tasks)
    call.show(document, f"resumed {', '.join(resumed.resumed_tasks)}")


@verb("job cancel", "job-456 --confirm job-456", destructive=True)
def cancel_job(call: Call, job_id: JobId, confirm: Confirm = None, queue: QueueOption = "tasks") -> None:
    """Cancel a job: waiting tasks do not start, running ones are killed."""
    from postroad.views import JobCancelled

    with call.backend() as backend:
        _job(call, backend, job_id)
        confirm_name(job_id, confirm, f'cancels job "{job_id}"')
        cancelled = _jobs(call, backend, queue).cancel(job_id)
    tasks = cancelled.cancelled_tasks
    call.show(JobCancelled(cancelled.job_id, tasks), f"cancelled {counted(len(tasks), 'task')}", ok=bool(tasks))


@verb("job list", "--status partial_failure")
def list_jobs(
    call: Call,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only jobs with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="At most this many.")] = 20,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor.")] = None,
) -> None:
    """List jobs, newest first."""
    from postroad.views import Page

    with call.backend() as backend:
        page = _views(call, backend).list_jobs(limit, cursor, status)
    lines = [f"{job.job_id}  {job.status}  {counted(job.total_tasks, 'task')}" for job in page.items]
    none = "no jobs" if page.cursor is None else f"no jobs among those looked at; continue with --cursor {page.cursor}"
    call.show(Page(page.items, page.cursor), *(lines or [none]))


def _jobs(call: Call, backend: Backend, queue: str) -> Jobs:
    from postroad.jobs import Jobs

    settings = call.settings()
    return Jobs(backend, queue=queue, tenant_id=settings.tenant, app=settings.app)


def _views(call: Call, backend: Backend) -> JobViews:
    from postroad.jobs.status import JobViews

    settings = call.settings()
    return JobViews.of(backend, tenant_id=settings.tenant, app=settings.app)


def _job(call: Call, backend: Backend, job_id: str) -> JobStatus:
    found = _views(call, backend).job_status(job_id)
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
