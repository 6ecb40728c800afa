"""`postroad task list|wait|retry` and `postroad schedule`: find tasks, run them again, pause what runs by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.call import Call, verb
from postroad.cli.display import table, utc_text
from postroad.cli.output import confirm_yes, progress_line
from postroad.cli.parameters import duration_option, per_second, short_duration
from postroad.cli.work import RequestId, check_request_id, status_lines
from postroad.errors import InvalidInput, NotFound
from postroad.signals import interrupted_by_sigterm
from postroad.telemetry import counted

if TYPE_CHECKING:
    from postroad.operations import RetryReport, TaskRetries
    from postroad.tasks import ListedTask, Schedules, ScheduleShown, TaskFilter
    from postroad.wiring import Backend

State = Annotated[
    str | None,
    typer.Option(metavar="STATE", help="Only pending, processing, completed, failed or cancelled tasks."),
]
Named = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only tasks of this name.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only since then: 1h, 2026-01-31T08:00:00Z or milliseconds."),
]


@verb("task list", "--state failed --since 1h")
def list_tasks(
    call: Call,
    state: State = None,
    name: Named = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="At most this many.")] = 20,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor.")] = None,
) -> None:
    """List tasks, the newest first; with --state, by when they entered the state."""
    from postroad.tasks import TaskList
    from postroad.views import Page, task_shown

    with call.backend() as backend:
        wanted, tasks = _filter(backend, state, name, since), TaskList(backend, tenant=call.settings().tenant)
        page = tasks.page(wanted, limit=limit, cursor=cursor)
        while not page.items and page.cursor is not None:
            # None of those that were examined matches; older ones may.
            page = tasks.page(wanted, limit=limit, cursor=page.cursor)
    document = Page([task_shown(listed.state) for listed in page.items], page.cursor)
    more = [] if page.cursor is None else [f"more: --cursor {page.cursor}"]
    headings = ["TASK", "NAME", "STATE", ">RUN", ">ATTEMPT", "LAST EVENT", ""]
    call.show(document, table(headings, map(_row, page.items), "no such tasks"), *more)


def _row(listed: ListedTask) -> list[object]:
    state = listed.state
    detail = state.error if state.error is not None and state.state != "completed" else state.progress
    first = "" if detail is None else (str(detail).splitlines() or [""])[0]
    when = utc_text(state.last_event_at)
    return [state.request_id, listed.name, state.state, state.run, state.attempt, when, first]


@verb("task wait", "req-123 --timeout 5m")
def wait(
    call: Call,
    request_id: RequestId,
    timeout: Annotated[float | None, duration_option("Give up after this time; by default never.")] = None,
) -> None:
    """Wait until a task has ended and show its state; exit 1 unless it is completed."""
    from postroad.tasks import TaskRecords, TaskRuns
    from postroad.views import task_shown

    check_request_id(request_id)
    with call.backend() as backend, interrupted_by_sigterm():
        runs = TaskRuns(backend.journal(), TaskRecords(backend), call.settings().tenant)
        _, run = runs.latest(request_id)
        end = runs.wait(request_id, run, timeout)
        state = runs.state(request_id, end=end)
    if state is None:
        # A task of a job that waits for others.
        raise NotFound(f'task "{request_id}" has not begun', remedy=f"See why: postroad why {request_id}")
    task = task_shown(state)
    late = [f"it is still {state.state} after {short_duration(timeout)}"] if end is None else []
    call.show(task, *status_lines(task), *late, ok=state.state == "completed")


@verb("task retry", "--state failed --name resize --since 1h --rate 10")
def retry(
    call: Call,
    request_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The request id of one task; without it, name a state.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="Q", help="Run it in this queue instead of the one it came from.")
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="All failed or cancelled tasks.")] = None,
    name: Named = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Retry at most this many.")] = None,
    rate: Annotated[
        float | None, typer.Option(parser=per_second, metavar="R", help="Retry at most this many per second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the tasks, change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the audit log.")] = "",
) -> None:
    """Run a failed or cancelled task again, or all that match, with an audit record."""
    _check_target(request_id, {"state": state, "name": name, "since": since, "limit": limit, "rate": rate})
    with call.backend() as backend:
        if request_id is not None:
            _retry_one(call, backend, request_id, queue)
            return
        wanted = _filter(backend, state, name, since)
        retries = _retries(call, backend)
        found = retries.retry_all(wanted, limit=limit, dry_run=True)
        if dry_run or not found.matched:
            call.show(found, f"would retry {_tasks(found.matched)}" if found.matched else "there is nothing to retry")
            return
        confirm_yes(yes, "retrying many tasks", lambda: f"retries {_tasks(found.matched)}")
        with progress_line(_progress, quiet=call.json) as progress, interrupted_by_sigterm():
            report = retries.retry_all(wanted, limit=limit, rate=rate, reason=reason, progress=progress)
    call.show(report, *_summary(report))


def _check_target(request_id: str | None, filters: dict[str, object]) -> None:
    given = next((name for name, value in filters.items() if value is not None), None)
    if request_id is not None and given is not None:
        raise InvalidInput(
            f"{given}: cannot be combined with the id of a task",
            field=given,
            remedy="Give an id, or --state and the other filters; nothing was changed.",
        )
    if request_id is None and filters["state"] is None:
        raise InvalidInput(
            "state: neither an id nor a state is given",
            field="state",
            remedy="Give the id of a task, or --state failed or --state cancelled; nothing was changed.",
        )


def _retry_one(call: Call, backend: Backend, request_id: str, queue: str | None) -> None:
    from postroad.tasks import TaskProducer
    from postroad.views import submitted

    check_request_id(request_id)
    if queue is None:
        handle = _retries(call, backend).retry(request_id)
    else:
        settings = call.settings()
        handle = TaskProducer(backend, queue=queue, tenant_id=settings.tenant, app=settings.app).retry(request_id)
    call.show(submitted(handle, "pending"), f"{handle.request_id} run {handle.run}")


def _filter(backend: Backend, state: str | None, name: str | None, since: str | None) -> TaskFilter:
    from postroad.tasks import TaskFilter, since_of

    now_ms = int(backend.clock.now().timestamp() * 1_000)
    return TaskFilter(state=state, name=name, since=since_of(since, now_ms), until=now_ms)


def _retries(call: Call, backend: Backend) -> TaskRetries:
    from postroad.operations import TaskRetries

    settings = call.settings()
    return TaskRetries(backend, tenant=settings.tenant, app=settings.app)


def _progress(report: RetryReport) -> str:
    return f"retried {report.retried:,}"


def _summary(report: RetryReport) -> list[str]:
    lines = [f"retried {_tasks(report.retried)}"]
    lines += [f"left {_tasks(count)} that cannot be retried" for count in report.skipped.values()]
    return [*lines, "more match than the limit; run it again for the rest"] if report.status == "limit" else lines


def _tasks(count: int) -> str:
    return counted(count, "task")


ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="The schedule, which has the name of its task.")]
_LATE = timedelta(minutes=1)


@verb("schedule list", "--json")
def list_schedules(call: Call) -> None:
    """List all schedules with their next and last runs."""
    from postroad.views import Page

    with call.backend() as backend:
        found = _schedules(call, backend).list_all()
        rows = list(_schedule_rows(found, backend.clock.now()))
    nothing = "no schedules; a worker registers those of its tasks when it starts"
    headings = ["SCHEDULE", "WHEN", "ZONE", "NEXT", "LAST", "LAST REQUEST ID"]
    call.show(Page(found, None), table(headings, rows, nothing))


def _schedule_rows(found: list[ScheduleShown], now: datetime) -> Iterator[list[Any]]:
    from rich.text import Text

    for each in found:
        following: Any = Text("paused", "yellow") if each.paused else _time(each.next_at)
        if each.next_at is not None and each.next_at < now - _LATE:
            following = Text(f"{_time(each.next_at)}, late: no worker runs it", "red")
        yield [Text(each.name, "bold"), each.schedule, each.tz, following, _time(each.last_at), each.last_request_id]


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


@verb("schedule pause", "nightly")
def pause(call: Call, name: ScheduleName) -> None:
    """Stop a schedule from running until it is resumed."""
    with call.backend() as backend:
        shown = _schedules(call, backend).pause(name)
    call.show(shown, f"{name} is paused; `postroad schedule resume {name}` lets it run again")


@verb("schedule resume", "nightly")
def resume(call: Call, name: ScheduleName) -> None:
    """Let a paused schedule run again, from its next time on."""
    with call.backend() as backend:
        shown = _schedules(call, backend).resume(name)
    call.show(shown, f"{name} runs next at {_time(shown.next_at)}")


@verb("schedule run", "nightly")
def run(call: Call, name: ScheduleName) -> None:
    """Run the task of a schedule once now, and print the request id."""
    with call.backend() as backend:
        shown = _schedules(call, backend).run(name)
    call.show(shown, str(shown.last_request_id))


def _schedules(call: Call, backend: Backend) -> Schedules:
    from postroad.tasks import Schedules

    settings = call.settings()
    return Schedules(backend, tenant_id=settings.tenant, app=settings.app)
