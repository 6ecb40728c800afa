"""`postroad task`: submit, find and show tasks, wait for them, run them again and cancel them."""

from __future__ import annotations

import json
from typing import Annotated

from postroad.arguments import check
from postroad.cli.call import Call, verb
from postroad.cli.display import more, table, utc_text
from postroad.cli.output import confirm_name, confirm_yes, wrapped
from postroad.cli.packages import journal, operations, tasks, tasks_messages, views, wiring
from postroad.cli.parameters import (
    Confirm,
    Cursor,
    PageSize,
    TaskQueue,
    Yes,
    argument,
    duration_option,
    flag,
    json_object,
    option,
    per_second,
    read_file,
    short_duration,
)
from postroad.errors import InvalidInput, InvalidTask, NotFound
from postroad.signals import interrupted_by_sigterm
from postroad.telemetry import counted, legible

RequestId = Annotated[str, argument("ID", "The request id that `task submit` printed.")]
State = Annotated[str | None, option("STATE", "Only pending, processing, completed, failed or cancelled tasks.")]
Named = Annotated[str | None, option("NAME", "Only tasks of this name.", "--name")]
Since = Annotated[str | None, option("TIME", "Only since then: 1h, 2026-01-31T08:00:00Z or milliseconds.")]


@verb("task init", "--url aws://eu-central-1")
def init(call: Call, queue: TaskQueue = "tasks") -> None:
    """Create the queues of tasks, or report how existing ones differ from what is needed."""
    with call.backend() as backend:
        tasks.ensure_queues(backend, queue)
        names = [spec.name for spec in tasks_messages.queue_specs(backend.stage_prefix + queue)]
    call.show({"ready": True, "queues": names}, f"ready: {', '.join(names)}")


@verb("task submit", """scrape-store --input '{"storeId": 7}'""")
def submit(
    call: Call,
    name: Annotated[str, argument("NAME", "The task.")],
    input: Annotated[str, option("JSON", "Its input, a JSON object; @file or - for stdin.", "--input")] = "{}",
    request_id: Annotated[str | None, option("ID", "The same id with the same input is the same run.")] = None,
    queue: TaskQueue = "tasks",
) -> None:
    """Submit a task and print its request id."""
    if input == "-" or input.startswith("@"):
        given = json_object(read_file(input.removeprefix("@"), "input", InvalidTask), "input", InvalidTask)
    else:
        given = json_object(input, "input", InvalidTask)
    with call.backend() as backend:
        producer = _producer(call, backend, queue)
        handle = producer.submit(name, given, request_id=request_id)
        state = None if handle.created else producer.status(handle.request_id)
    call.show(views.submitted(handle, "pending" if state is None else state.state), handle.request_id)


@verb("task status", "req-123")
def status(
    call: Call,
    request_id: RequestId,
    at: Annotated[int | None, option("MS", "Its state at this time, in milliseconds since 1970.")] = None,
) -> None:
    """Show the state of a task, its progress, and where it failed."""
    with call.backend() as backend:
        task = views.task_shown(_state(call, backend, request_id, at))
    call.show(task, *wrapped(status_lines(task)))


def status_lines(task: views.TaskShown) -> list[str]:
    lines = [
        f"{task.request_id}  {task.state}  run {task.run}, attempt {task.attempt}",
        f"{utc_text(task.last_event_at)}  {legible(task.last_event_type)}",
    ]
    if isinstance(task.progress, journal.TaskProgress):
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
    check_request_id(request_id)
    with call.backend() as backend:
        events = journal.task_history(backend.journal(), call.settings().tenant, request_id)
    if not events:
        raise NotFound(f'there is no task "{request_id}"')
    items = [views.event_item(event) for event in events]
    call.show(views.Page(items, None), *wrapped(line for event in events for line in _event_lines(event)))


def _event_lines(event: journal.JournalEvent) -> list[str]:
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
    check_request_id(request_id)
    with call.backend() as backend:
        # No question about a task that does not exist.
        tasks.TaskRuns(backend.journal(), tasks.TaskRecords(backend), call.settings().tenant).latest(request_id)
        confirm_name(request_id, confirm, f'cancels task "{request_id}"')
        cancelled = _producer(call, backend).cancel(request_id)
    text = "cancelled" if cancelled else "it had ended already"
    call.show(views.TaskCancelled(request_id, cancelled), text, ok=cancelled)


def check_request_id(request_id: str) -> None:
    """Raise `InvalidTask` for a text that cannot be a request id."""
    check(request_id, tasks_messages.AnyRequestId, "requestId", InvalidTask)


def _state(call: Call, backend: wiring.Backend, request_id: str, at: int | None = None) -> journal.TaskState:
    """Return the state of the task. Reading it creates no queue, so it needs no producer."""
    check_request_id(request_id)
    state = tasks.current_state(backend.journal(), tasks.TaskRecords(backend), call.settings().tenant, request_id, at)
    if state is None:
        raise NotFound(f'there is no task "{request_id}"')
    return state


def _producer(call: Call, backend: wiring.Backend, queue: str = "tasks") -> tasks.TaskProducer:
    return tasks.TaskProducer(backend, queue=queue, **call.settings().identity)


@verb("task list", "--state failed --since 1h")
def list_tasks(
    call: Call,
    state: State = None,
    name: Named = None,
    since: Since = None,
    limit: PageSize = 20,
    cursor: Cursor = None,
) -> None:
    """List tasks, the newest first; with --state, by when they entered the state."""
    with call.backend() as backend:
        wanted, listing = _filter(backend, state, name, since), tasks.TaskList(backend, tenant=call.settings().tenant)
        page = listing.page(wanted, limit=limit, cursor=cursor)
        while not page.items and page.cursor is not None:
            # None of those that were examined matches; older ones may.
            page = listing.page(wanted, limit=limit, cursor=page.cursor)
    document = views.Page([views.task_shown(listed.state) for listed in page.items], page.cursor)
    headings = ["TASK", "NAME", "STATE", ">RUN", ">ATTEMPT", "LAST EVENT", ""]
    call.show(document, table(headings, map(_row, page.items), "no such tasks"), *more(page.cursor))


def _row(listed: tasks.ListedTask) -> list[object]:
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
    check_request_id(request_id)
    with call.backend() as backend, interrupted_by_sigterm():
        runs = tasks.TaskRuns(backend.journal(), tasks.TaskRecords(backend), call.settings().tenant)
        _, run = runs.latest(request_id)
        end = runs.wait(request_id, run, timeout)
        state = runs.state(request_id, end=end)
    if state is None:
        # A task of a job that waits for others.
        raise NotFound(f'task "{request_id}" has not begun', remedy=f"See why: postroad why {request_id}")
    task = views.task_shown(state)
    late = [f"it is still {state.state} after {short_duration(timeout)}"] if end is None else []
    call.show(task, *wrapped([*status_lines(task), *late]), ok=state.state == "completed")


@verb("task retry", "--state failed --name resize --since 1h --rate 10")
def retry(
    call: Call,
    request_id: Annotated[str | None, argument("ID", "The request id of one task; without it, name a state.")] = None,
    queue: Annotated[str | None, option("Q", "Run it in this queue instead of the one it came from.")] = None,
    state: Annotated[str | None, option("STATE", "All failed or cancelled tasks.")] = None,
    name: Named = None,
    since: Since = None,
    limit: Annotated[int | None, option("N", "Retry at most this many.", min=1)] = None,
    rate: Annotated[float | None, option("R", "Retry at most this many per second.", parser=per_second)] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Count the tasks, change nothing.")] = False,
    yes: Yes = False,
    reason: Annotated[str, option("TEXT", "Why, for the audit log.")] = "",
) -> None:
    """Run a failed or cancelled task again, or all that match, with an audit record."""
    _check_target(request_id, {"state": state, "name": name, "since": since, "limit": limit, "rate": rate})
    settings = call.settings()
    with call.backend() as backend:
        retries = operations.TaskRetries(backend, tenant=settings.tenant, app=settings.app)
        if request_id is not None:
            check_request_id(request_id)
            again = retries if queue is None else _producer(call, backend, queue)
            handle = again.retry(request_id)
            call.show(views.submitted(handle, "pending"), f"{handle.request_id} run {handle.run}")
            return
        wanted = _filter(backend, state, name, since)
        found = retries.retry_all(wanted, limit=limit, dry_run=True)
        matched = counted(found.matched, "task")
        if dry_run or not found.matched:
            call.show(found, f"would retry {matched}" if found.matched else "there is nothing to retry")
            return
        confirm_yes(yes, "retrying many tasks", lambda: f"retries {matched}")
        with call.working("retrying", _summary_line) as progress, interrupted_by_sigterm():
            report = retries.retry_all(wanted, limit=limit, rate=rate, reason=reason, progress=progress)
    lines = [_summary_line(report)]
    lines += [f"left {counted(count, 'task')} that cannot be retried" for count in report.skipped.values()]
    if report.status == "limit":
        lines.append("more match than the limit; run it again for the rest")
    call.show(report, *lines)


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


def _filter(backend: wiring.Backend, state: str | None, name: str | None, since: str | None) -> tasks.TaskFilter:
    now_ms = int(backend.clock.now().timestamp() * 1_000)
    return tasks.TaskFilter(state=state, name=name, since=tasks.since_of(since, now_ms), until=now_ms)


def _summary_line(report: operations.RetryReport) -> str:
    return f"retried {counted(report.retried, 'task')}"
